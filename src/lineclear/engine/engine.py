"""One engine: a scheduler that decides, a runner that computes, step by step.

Driven by the worker's loop, by the evaluation and by tests. It owns the block pool, the prefix tree and the KV store of
one process; nothing else touches them.
"""

import time
from dataclasses import dataclass

from lineclear.base.ids import SequenceId
from lineclear.engine.runner import Runner
from lineclear.engine.store import KvStore
from lineclear.kv.pool import BlockPool, PoolStatistics
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.scheduler import Scheduler, SchedulerStatistics
from lineclear.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Totals since the engine was built, and its state now."""

    scheduler: SchedulerStatistics
    pool: PoolStatistics
    num_steps: int
    step_seconds_total: float


class Engine:
    """Runs sequences to their end.

    Order: one thread calls everything.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, store: KvStore, pool: BlockPool) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._sequences: dict[SequenceId, Sequence] = {}
        self._runner = runner
        self._store = store
        self._num_steps = 0
        self._step_seconds_total = 0.0

    @property
    def store(self) -> KvStore:
        """The KV of this engine's blocks."""
        return self._store

    @property
    def scheduler(self) -> Scheduler:
        """Who decides: for those that carry KV between workers, between two steps."""
        return self._scheduler

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work

    def submit(self, sequence: Sequence) -> None:
        """Accept a sequence; its updates come from `step`, the last of them with a finish reason.

        One that can never run ends with an error in the next step.
        """
        self._sequences[sequence.sequence_id] = sequence
        self._scheduler.add(sequence)

    def cancel(self, sequence_id: SequenceId) -> bool:
        """End a sequence; False where it is unknown or has ended. The ending comes from `step`."""
        return self._scheduler.cancel(sequence_id)

    def step(self) -> list[SequenceUpdate]:
        """Plan, compute, commit once; without work, nothing.

        Returns: for each sequence with news its new tokens or its ending.
        """
        started = time.perf_counter()
        plan = self._scheduler.plan(self._num_steps)
        results = self._runner.run(plan, self._sequences) if plan.chunks else {}
        updates = self._scheduler.commit(plan, results)
        for update in updates:
            if update.finish_reason is not None:
                sequence_id = update.sequence.sequence_id
                self._runner.forget(sequence_id)
                del self._sequences[sequence_id]
        if plan.chunks:
            self._num_steps += 1
            self._step_seconds_total += time.perf_counter() - started
        return updates

    def check(self) -> None:
        """Assert every invariant of scheduler, pool and tree."""
        self._scheduler.check()

    def statistics(self) -> EngineStatistics:
        """Figures for metrics."""
        return EngineStatistics(
            scheduler=self._scheduler.statistics(),
            pool=self._pool.statistics(),
            num_steps=self._num_steps,
            step_seconds_total=self._step_seconds_total,
        )
