"""One engine: a scheduler that decides, a runner that computes, step by step.

Driven by the worker's loop, by the evaluation and by tests. It owns the block pool, the prefix tree and the KV store of
one process; nothing else touches them.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from lineclear.base.ids import SequenceId
from lineclear.engine.bell import wait_readable
from lineclear.engine.readiness import AlwaysReady, Readiness
from lineclear.engine.sanitizer import KvSanitizer, SanitizerStatistics
from lineclear.engine.store import KvStore
from lineclear.engine.tier_copies import Copies, CopyStatistics
from lineclear.kv.pool import BlockPool, PoolStatistics
from lineclear.schedule.plan import ChunkResult, Plan, SequenceUpdate
from lineclear.schedule.scheduler import Scheduler, SchedulerStatistics
from lineclear.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Totals since the engine was built, and its state now."""

    scheduler: SchedulerStatistics
    pool: PoolStatistics
    num_steps: int
    step_seconds_total: float
    copies: CopyStatistics | None = None
    """With tiers below the device; the scheduler's statistics have the rest."""
    sanitizer: SanitizerStatistics | None = None


@dataclass(frozen=True, slots=True)
class TierDrive:
    """What executes the copies between tiers, and how long a queued sequence waits for the disk."""

    copies: Copies
    prefetch_seconds: float | None
    """None: for as long as it takes."""
    now: Callable[[], float] = time.monotonic


class PlanRunner(Protocol):
    """What executes plans; `lineclear.engine.runner.Runner` does it on one rank."""

    def run(
        self, plan: Plan, sequences: Mapping[SequenceId, Sequence], readiness: Readiness
    ) -> dict[SequenceId, ChunkResult]:
        """Execute a plan, waiting for what it reads where it reads it."""
        ...

    def forget(self, sequence_id: SequenceId) -> None:
        """Drop what is kept for a sequence between its steps."""
        ...


class Engine:
    """Runs sequences to their end.

    With tiers below the device a step starts the copies that its plan wants before the pass and those that its commit
    wants after it, and takes in what has ended; between steps whoever drives the engine waits for `filenos` as well,
    and calls `take_in_copies`.

    Order: one thread calls everything.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: PlanRunner,
        store: KvStore,
        pool: BlockPool,
        tiers: TierDrive | None = None,
        sanitizer: KvSanitizer | None = None,
    ) -> None:
        self._tiers = tiers
        self._sanitizer = sanitizer
        self._deadlines: dict[SequenceId, float] = {}
        """When queued sequences wait for the disk no more."""
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
    def sanitizer(self) -> KvSanitizer | None:
        """What looks for damaged KV, if anything does; it watches the pool."""
        return self._sanitizer

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
        if self._tiers is not None:
            prefetch_seconds = self._tiers.prefetch_seconds
            if prefetch_seconds is not None and self._scheduler.is_prefetching(sequence.sequence_id):
                self._deadlines[sequence.sequence_id] = self._tiers.now() + prefetch_seconds
            self._start_copies()

    def cancel(self, sequence_id: SequenceId) -> bool:
        """End a sequence; False where it is unknown or has ended. The ending comes from `step`."""
        return self._scheduler.cancel(sequence_id)

    def step(self) -> list[SequenceUpdate]:
        """Plan, compute, commit once; without work, nothing.

        Returns: for each sequence with news its new tokens or its ending.
        """
        started = time.perf_counter()
        self.take_in_copies()
        plan = self._scheduler.plan(self._num_steps)
        results = self._run_watched(plan) if plan.chunks else {}
        updates = self._scheduler.commit(plan, results)
        self._start_copies()
        for update in updates:
            if update.finish_reason is not None:
                sequence_id = update.sequence.sequence_id
                self._runner.forget(sequence_id)
                if self._sanitizer is not None:
                    self._sanitizer.forget(sequence_id)
                del self._sequences[sequence_id]
        self._sweep()
        if plan.chunks:
            self._num_steps += 1
            self._step_seconds_total += time.perf_counter() - started
        return updates

    def take_in_copies(self) -> None:
        """Tell the scheduler which copies between tiers have ended, and who has waited for the disk for long enough."""
        if self._tiers is None:
            return
        for end in self._tiers.copies.poll():
            self._scheduler.end_copy(end)
        self._scheduler.note_on_disk(self._tiers.copies.take_found())
        if self._deadlines:
            self._end_waits(self._tiers.now())
        self._start_copies()

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `take_in_copies` may have something to do."""
        return () if self._tiers is None else self._tiers.copies.filenos()

    def seconds_until_due(self) -> float:
        """How long `take_in_copies` may be put off while nothing is readable."""
        if self._tiers is None or not self._deadlines:
            return float("inf")
        return max(0.0, min(self._deadlines.values()) - self._tiers.now())

    def wait_for_copies(self) -> bool:
        """Without work: wait until a copy has ended; whether there was one to wait for."""
        if self._tiers is None or self._tiers.copies.is_idle:
            return False
        wait_readable(self.filenos(), self.seconds_until_due())
        self.take_in_copies()
        return True

    def finish_copies(self, seconds: float) -> bool:
        """Let copies that are under way end, and what follows from them: an offload may go on to disk.

        Nothing is given up when the time is over; who ends the process then loses what is not written.

        Order: no step follows.
        Returns: whether all have ended, within so many seconds.
        """
        if self._tiers is None:
            return True
        self.take_in_copies()
        deadline = self._tiers.now() + seconds
        while not self._tiers.copies.is_idle:
            left = deadline - self._tiers.now()
            if left <= 0:
                return False
            wait_readable(self.filenos(), left)
            self.take_in_copies()
        return True

    def close(self) -> None:
        """End the threads that copy."""
        if self._tiers is not None:
            self._tiers.copies.close()

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
            copies=None if self._tiers is None else self._tiers.copies.statistics(),
            sanitizer=None if self._sanitizer is None else self._sanitizer.statistics(),
        )

    def _run_watched(self, plan: Plan) -> dict[SequenceId, ChunkResult]:
        """One pass; what came of damaged KV is an error."""
        if self._sanitizer is None:
            return self._run(plan)
        self._sanitizer.before_pass(plan, self._sequences)
        results = self._run(plan)
        return results | self._sanitizer.after_pass(plan, self._sequences, results)

    def _sweep(self) -> None:
        """Look at some blocks more; let nobody find what is damaged."""
        if self._sanitizer is not None:
            self._sanitizer.sweep()
            suspects, host_suspects = self._sanitizer.take_suspects()
            if suspects or host_suspects:
                self._scheduler.forget_blocks(suspects, host_suspects)

    def _run(self, plan: Plan) -> dict[SequenceId, ChunkResult]:
        """One pass: it starts at once, and waits for its loads where it reads what they bring."""
        if self._tiers is None:
            return self._runner.run(plan, self._sequences, AlwaysReady())
        self._start_copies()
        copies = self._tiers.copies
        results = self._runner.run(plan, self._sequences, copies.readiness(plan.load_ids))
        for end in copies.settle(plan.load_ids):
            self._scheduler.end_copy(end)
        return results

    def _start_copies(self) -> None:
        if self._tiers is not None:
            self._tiers.copies.start(self._scheduler.take_copies())

    def _end_waits(self, now: float) -> None:
        for sequence_id, deadline in list(self._deadlines.items()):
            if not self._scheduler.is_prefetching(sequence_id):
                del self._deadlines[sequence_id]
            elif deadline <= now:
                del self._deadlines[sequence_id]
                self._scheduler.stop_prefetch(sequence_id)
