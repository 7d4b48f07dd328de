"""N ranks on threads of this process, behind one engine: each has a store and passes of its own, and one plans for all.

    Engine ── run(plan) ──▶ GroupRunner ──▶ a Runner a rank, each in its thread ──▶ their results, which must be equal

What it stands in for is the sending of plans between processes: ranks see the planner's own sequences.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
import torch

from lineclear.base.errors import InvariantError, RankError
from lineclear.base.ids import SequenceId
from lineclear.config.components import CacheConfig, EngineConfig
from lineclear.engine.build import EngineParts, build_parts, engine_of
from lineclear.engine.build_tiers import PRODUCT, BuiltCopies, TierMaking, build_copies
from lineclear.engine.engine import Engine, PlanRunner
from lineclear.engine.readiness import Readiness
from lineclear.engine.store import KvStore
from lineclear.parallel.build import RankConfig, RankLab, RankMaking
from lineclear.parallel.communicator import Lane
from lineclear.parallel.local_wire import local_wires
from lineclear.parallel.meter import CommunicationStatistics, Meter, SpanSink
from lineclear.parallel.rank_communicator import RankCommunicator
from lineclear.schedule.plan import ChunkResult, Plan
from lineclear.schedule.sequence import Sequence as EngineSequence
from lineclear.testing.ranks.copies import GroupCopies, GroupReadiness

R = TypeVar("R")

DEADLINE_SECONDS = 60.0


Sequences: TypeAlias = Mapping[SequenceId, EngineSequence]

Around: TypeAlias = Callable[[int, Plan, Sequences, Readiness], AbstractContextManager[Readiness]]
"""Given a rank and what it is about to run: what it waits with, and what happens before and after."""


def _no_delay(_lane: Lane) -> None:
    pass


@contextmanager
def _nothing_around(_rank: int, _plan: Plan, _sequences: Sequences, readiness: Readiness) -> Generator[Readiness]:
    yield readiness


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """How the ranks are built."""

    size: int
    ranks: RankConfig
    engine: EngineConfig
    before_transfer: Callable[[Lane], None] = _no_delay
    lab: RankLab = field(default_factory=RankLab)
    deadline_seconds: float = DEADLINE_SECONDS
    make_around: Callable[[Sequence[KvStore]], Around] = lambda _stores: _nothing_around
    """What is around each rank's run of a plan; the lab lets loads end late with it."""
    cache: CacheConfig | None = None
    tier_making: TierMaking = PRODUCT
    sink_of: Callable[[int], SpanSink | None] = lambda _rank: None
    """Who hears of a rank's spans; tests draw timelines with it, and let ranks fail wherever something happens."""


class GroupRunner:
    """Runs every plan on all ranks at once.

    Args:
        runners: of the ranks.
        around: what is around each rank's run.
    """

    def __init__(self, runners: Sequence[PlanRunner], around: Around) -> None:
        self._runners = runners
        self._around = around
        self._threads = [ThreadPoolExecutor(1, f"rank{rank}") for rank in range(len(runners))]

    def run(self, plan: Plan, sequences: Sequences, readiness: Readiness) -> dict[SequenceId, ChunkResult]:
        """The ranks' results. Raises: InvariantError if they differ; what the ranks raise."""

        def run_rank(rank: int) -> dict[SequenceId, ChunkResult]:
            own = readiness.of(rank) if isinstance(readiness, GroupReadiness) else readiness
            with self._around(rank, plan, sequences, own) as of_rank:
                return self._runners[rank].run(plan, sequences, of_rank)

        loading = {each for each in sequences if sequences[each].load_id is not None}
        return _the_same(self._on_all(run_rank), loading)

    def forget(self, sequence_id: SequenceId) -> None:
        """Drop a sequence on all ranks."""
        for runner in self._runners:
            runner.forget(sequence_id)

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.shutdown()

    def _on_all(self, do: Callable[[int], R]) -> "list[Future[R]]":
        futures = [thread.submit(do, rank) for rank, thread in enumerate(self._threads)]
        for future in futures:
            future.exception()
        return futures


class RankGroup:
    """Ranks and the engine that plans for them. Order: close it."""

    def __init__(self, config: GroupConfig, model_dir: Path) -> None:
        self.meters = [Meter(config.sink_of(rank)) for rank in range(config.size)]
        wires = local_wires(config.size, config.deadline_seconds)
        device = torch.device("cpu")
        self.communicators = [
            RankCommunicator(wire, device, config.before_transfer, meter)
            for wire, meter in zip(wires, self.meters, strict=True)
        ]
        try:
            built = _together(config.size, partial(self._build, config, model_dir))
        except BaseException:
            self._close_communicators()
            raise
        parts = [each for each, _ in built]
        self.stores: list[KvStore] = [each.store for each in parts]
        self.runners = [each.runner for each in parts]
        self.runner = GroupRunner(self.runners, config.make_around(self.stores))
        self.engine: Engine = engine_of(
            replace(parts[0], runner=self.runner),
            config.engine,
            cache=config.cache,
            copies=_all_copies([copies for _, copies in built if copies is not None]),
            tier_making=config.tier_making,
        )

    def statistics(self) -> list[CommunicationStatistics]:
        """Each rank's totals."""
        return [meter.statistics() for meter in self.meters]

    def close(self) -> None:
        """End all threads."""
        self._close_communicators()
        self.runner.close()
        self.engine.close()

    def _build(self, config: GroupConfig, model_dir: Path, rank: int) -> tuple[EngineParts, BuiltCopies | None]:
        making = RankMaking(
            config.ranks, config.engine, model_dir, self.communicators[rank], self.meters[rank], config.lab
        )
        parts = build_parts(config.engine, model_dir, pass_making=making)
        if config.cache is None:
            return parts, None
        return parts, build_copies(
            config.cache, config.engine, model_dir, parts.store, config.tier_making, making.agree
        )

    def _close_communicators(self) -> None:
        for communicator in self.communicators:
            communicator.close()


def _all_copies(by_rank: Sequence[BuiltCopies]) -> BuiltCopies | None:
    if not by_rank:
        return None
    return replace(by_rank[0], copies=GroupCopies([each.copies for each in by_rank]))


def _together(size: int, do: Callable[[int], R]) -> list[R]:
    """Do it on a thread for each rank; raises what the first that failed raises."""
    with ThreadPoolExecutor(size) as threads:
        return [each.result() for each in [threads.submit(do, rank) for rank in range(size)]]


def _the_same(
    futures: "Sequence[Future[dict[SequenceId, ChunkResult]]]", loading: Collection[SequenceId]
) -> dict[SequenceId, ChunkResult]:
    """What all have returned or raised.

    Drafts after a load are not compared: if it has failed on one rank, they are thrown away with the rest.
    """
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, RankError):
            raise error
    if len({repr(error) for error in errors}) > 1:
        raise InvariantError(f"ranks ended differently: {errors}")
    first, *others = [future.result() for future in futures]
    expected = {each: _compared(result, each in loading) for each, result in first.items()}
    if any(
        {each: _compared(result, each in loading) for each, result in other.items()} != expected for other in others
    ):
        raise InvariantError(f"ranks have different results: {first}, {others}")
    return first


def _compared(result: ChunkResult, is_loading: bool) -> ChunkResult:
    return msgspec.structs.replace(result, next_draft_token_ids=()) if is_loading else result
