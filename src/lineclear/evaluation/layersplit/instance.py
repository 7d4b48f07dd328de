"""An instance of several ranks, as processes that the benchmark starts, asks and ends."""

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from lineclear.base.errors import PeerError
from lineclear.config.components import EngineConfig, HandoffConfig, LinkConfig, ModelSource, RanksConfig, ServeConfig
from lineclear.evaluation.layersplit.messages import Answer, Ask, Digests, Failed, Leave, RankStart, Ready
from lineclear.evaluation.layersplit.rank_process import run_rank
from lineclear.evaluation.layersplit.setting import Budget, Setting
from lineclear.evaluation.layersplit.spans import SpanReader
from lineclear.parallel.build import KvLayout
from lineclear.protocol.roles import Role
from lineclear.transport.endpoint import UnixEndpoint
from lineclear.worker.seat import Seat

MessageT = TypeVar("MessageT", Ready, Answer, Digests)

STEP_SECONDS: Final = 900.0
"""How long a rank waits for another one: cores are shared, and a step of a long prompt takes its time."""

LEAVE_SECONDS: Final = 20.0


def serve_config(model_dir: Path, setting: Setting, budget: Budget, layout: KvLayout, num_ranks: int) -> ServeConfig:
    """What an instance runs with; `lineclear serve` would run the same."""
    engine = EngineConfig(
        max_total_tokens=budget.tokens[layout],
        max_model_len=setting.longest + 1,
        max_batch_tokens=setting.max_batch_tokens,
        block_size=setting.block_size,
    )
    return ServeConfig(
        source=ModelSource(model=str(model_dir)),
        engine=engine,
        handoff=HandoffConfig(prefill=1),
        ranks=RanksConfig(cp=num_ranks, kv_layout=layout, rank_timeout_seconds=STEP_SECONDS),
        link=LinkConfig(peer_timeout_seconds=STEP_SECONDS),
    )


class Instance:
    """One running instance.

    Args:
        config: of all ranks.
        folder: for its sockets and spans. Owns: nobody else writes there.
    """

    def __init__(self, config: ServeConfig, folder: Path) -> None:
        num_ranks = config.ranks.cp
        paths = [folder / f"spans-{rank}.jsonl" for rank in range(num_ranks)]
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.spans: Final = SpanReader(paths)
        self._processes: list[SpawnProcess] = []
        for rank in range(num_ranks):
            seat = Seat(
                "bench",
                1,
                Role.PREFILL,
                peer_endpoint=str(UnixEndpoint(str(folder / f"peer-{rank}"))),
                rank=rank,
                num_ranks=num_ranks,
                rank_endpoint=str(UnixEndpoint(str(folder / "ranks"))),
            )
            start = RankStart(config, seat, str(paths[rank]))
            process = context.Process(target=run_rank, args=(start, theirs if rank == 0 else None), daemon=True)
            process.start()
            self._processes.append(process)
        theirs.close()
        self.ready: Final = self._receive(Ready)

    def ask(self, token_ids: list[int], *, digests: bool = False) -> Answer:
        """Compute a prompt; with `digests`, `take_digests` is called next.

        Raises: PeerError if a rank is gone, or cannot.
        """
        self._pipe.send(Ask(tuple(token_ids), digests))
        return self._receive(Answer)

    def take_digests(self) -> dict[str, str]:
        """What rank 0 stores of the prompt that was asked with digests, by "layer part"."""
        return self._receive(Digests).by_part

    def cpu_seconds(self) -> float:
        """What all ranks have computed so far, in any of their threads, by the kernel's count of clock ticks."""
        return sum(_cpu_ticks(process.pid) for process in self._processes) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Let all ranks end; whoever does not is killed."""
        with contextlib.suppress(OSError):  # where rank 0 is gone the others leave
            self._pipe.send(Leave())
        self._pipe.close()
        deadline = time.monotonic() + LEAVE_SECONDS
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, wanted: type[MessageT]) -> MessageT:
        sentinels = [process.sentinel for process in self._processes]
        came = wait([self._pipe, *sentinels])
        if self._pipe not in came and not self._pipe.poll(1.0):
            raise self._ended(f"a rank has ended: exit codes {[process.exitcode for process in self._processes]}")
        try:
            message = self._pipe.recv()
        except EOFError as error:
            raise self._ended("rank 0 has ended") from error
        if isinstance(message, wanted):
            return message
        raise self._ended(message.reason if isinstance(message, Failed) else f"rank 0 answers {message!r}")

    def _ended(self, reason: str) -> PeerError:
        self.close()
        return PeerError(reason)


def _cpu_ticks(pid: int | None) -> int:
    """User and system time of a process: the 14th and 15th field of its `stat`; see proc(5)."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


@contextmanager
def start_instance(config: ServeConfig) -> Generator[Instance]:
    """Start an instance in a folder of its own, and end it."""
    with tempfile.TemporaryDirectory(prefix="lineclear-bench-") as folder, Instance(config, Path(folder)) as instance:
        yield instance
