"""A mover that takes its time: faults for tests of what is above, around any other mover.

A write is cut into its runs, which are posted one by one, each after a pause; its completion is held back; and some
completions are lost, which the owner sees as UNKNOWN, with or without the proof later. All of it is drawn from a seed.

Everything that it says is as true as what the mover inside says: it holds the contract of `mover.py`, and no byte is
changed before all spans are known to be inside. Memories, admissions and fences are those of the mover inside.
"""

import heapq
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lineclear.engine.bell import wait_readable
from lineclear.transport.movers.mover import Completion, Memory, Mover, Outcome, Span, Writer
from lineclear.transport.movers.spans import DESTINATION, NUM_BYTES, SOURCE, SpanError, checked_runs
from lineclear.transport.movers.threaded_writer import Forget, Orders, Reports, ThreadedWriter, Write

_LOOK_SECONDS: Final = 0.02
"""How often the mover inside is looked at for late proofs, and the owner for its wish to close."""
_ANY_SIZE: Final = 2**62
"""Only the mover inside knows how large the destination is."""


@dataclass(frozen=True, slots=True)
class Delays:
    """What happens to writes. Times are drawn evenly from 0 to the maximum.

    Args:
        max_run_seconds: before each run is posted.
        slow_share: of writes, 0 to 1, that stand still before one of their runs for up to `max_slow_seconds`.
        max_slow_seconds: see there.
        max_completion_seconds: before each completion is reported. Completions overtake each other.
        lost_share: of completions, 0 to 1, reported as UNKNOWN instead.
        proves_late: whether what was lost is reported after another pause, and not never.
    """

    max_run_seconds: float = 0.0
    slow_share: float = 0.0
    max_slow_seconds: float = 0.0
    max_completion_seconds: float = 0.0
    lost_share: float = 0.0
    proves_late: bool = True


class DelayedMover:
    """Another mover, delayed. Each writer's faults are drawn from the seed and the writer's number, from 0.

    `on_slow` is called in the writer's thread when a write is about to stand still.
    """

    def __init__(self, mover: Mover, delays: Delays, seed: int = 0, on_slow: Callable[[], None] | None = None) -> None:
        self._on_slow = on_slow
        self._mover = mover
        self._delays = delays
        self._seed = seed
        self._num_writers = 0

    def open_memory(self, num_bytes: int) -> Memory:
        """Make a memory of the mover inside."""
        return self._mover.open_memory(num_bytes)

    def open_writer(self, memory: Memory) -> ThreadedWriter:
        """Make a writer that reads from one of these memories, slowly."""
        dice = random.Random(f"{self._seed} {self._num_writers}")  # noqa: S311 - faults, no secrets
        self._num_writers += 1
        inside = self._mover.open_writer(memory)
        delayer = _Delayer(inside, memory.num_bytes, self._delays, dice, self._on_slow)
        return ThreadedWriter(inside.identity, delayer.work, "delayed-writer")


@dataclass(order=True, slots=True)
class _Held:
    """A completion that waits for its time."""

    due_seconds: float
    number: int
    completion: Completion = field(compare=False)


class _Delayer:
    def __init__(
        self,
        inside: Writer,
        source_bytes: int,
        delays: Delays,
        dice: random.Random,
        on_slow: Callable[[], None] | None = None,
    ) -> None:
        self._on_slow = on_slow
        self._inside = inside
        self._source_bytes = source_bytes
        self._delays = delays
        self._dice = dice
        self._num_posts = 0
        self._num_held = 0
        self._held: list[_Held] = []
        self._late: list[Completion] = []
        self._open: dict[int, int] = {}
        """Tickets of ours by the ticket inside: of the run that flies, and of runs whose end is unknown."""

    def work(self, orders: Orders, reports: Reports) -> None:
        """Answer all orders, one after the other."""
        while not orders.is_over:
            match orders.take(self._patience()):
                case Write() as write:
                    self._hold(self._move(write, orders))
                case Forget(memory_key) if not orders.is_closing:
                    self._inside.forget(memory_key)
                case _:
                    pass
            self._poll()
            self._hold_late()
            self._report(reports, until=time.monotonic())
        self._inside.close()
        self._poll()
        self._hold_late()
        self._report(reports, until=float("inf"))

    def _patience(self) -> float | None:
        if self._held:
            return min(_LOOK_SECONDS, max(0.0, self._held[0].due_seconds - time.monotonic()))
        return _LOOK_SECONDS if self._open else None

    def _move(self, write: Write, orders: Orders) -> Completion:
        """Make one write, run by run, and return its answer."""
        try:
            runs = checked_runs(write.spans, self._source_bytes, _ANY_SIZE)
        except SpanError as error:
            return Completion(write.ticket, Outcome.FAILED, str(error))
        answer = self._post(write, _edges(write), orders)
        stands_at = self._dice.randrange(len(runs)) if len(runs) and self._is_slow() else None
        for idx, run in enumerate(runs.tolist()):
            if answer.outcome is not Outcome.DONE:
                break
            self._pause(orders, self._delays.max_run_seconds)
            if idx == stands_at:
                if self._on_slow is not None:
                    self._on_slow()
                self._pause(orders, self._delays.max_slow_seconds)
            answer = self._post(write, [Span(*run)], orders)
        return answer

    def _post(self, write: Write, spans: list[Span], orders: Orders) -> Completion:
        """Post a part of a write, and return what becomes of it."""
        if orders.is_closing:
            return Completion(write.ticket, Outcome.FAILED, "the writer was closed")
        ticket = self._num_posts
        self._num_posts += 1
        self._open[ticket] = write.ticket
        self._inside.post(ticket, write.memory_key, spans)
        while (answer := self._poll(ticket)) is None:
            wait_readable([self._inside.fileno()], _LOOK_SECONDS)
            if orders.is_closing:
                self._inside.close()
        return Completion(write.ticket, answer.outcome, answer.reason)

    def _poll(self, awaited: int | None = None) -> Completion | None:
        """Return the first answer to a ticket inside, if it is there; hold what is known of lost ones."""
        found: Completion | None = None
        for answer in self._inside.poll():
            ticket = self._open[answer.ticket]
            if answer.outcome is not Outcome.UNKNOWN:
                del self._open[answer.ticket]
            if answer.ticket == awaited and found is None:
                found = answer
            else:
                # Whatever became of that run, the runs after it were never posted.
                self._late.append(Completion(ticket, Outcome.FAILED, answer.reason))
        return found

    def _is_slow(self) -> bool:
        return self._delays.slow_share > 0 and self._dice.random() < self._delays.slow_share

    def _pause(self, orders: Orders, max_seconds: float) -> None:
        end = time.monotonic() + self._dice.uniform(0.0, max_seconds)
        while not orders.is_closing and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    def _hold(self, completion: Completion) -> None:
        is_lost = completion.outcome is not Outcome.UNKNOWN and self._dice.random() < self._delays.lost_share
        if is_lost:
            self._hold_back(Completion(completion.ticket, Outcome.UNKNOWN, "told to be lost"))
        if not is_lost or self._delays.proves_late:
            self._hold_back(completion)

    def _hold_late(self) -> None:
        late, self._late = self._late, []
        for completion in late:
            self._hold_back(completion)

    def _hold_back(self, completion: Completion) -> None:
        """Let it wait, but never before another one of its ticket."""
        same = [held.due_seconds for held in self._held if held.completion.ticket == completion.ticket]
        due = max(same, default=time.monotonic()) + self._dice.uniform(0.0, self._delays.max_completion_seconds)
        self._num_held += 1
        heapq.heappush(self._held, _Held(due, self._num_held, completion))

    def _report(self, reports: Reports, until: float) -> None:
        while self._held and self._held[0].due_seconds <= until:
            reports.put(heapq.heappop(self._held).completion)


def _edges(write: Write) -> list[Span]:
    """Return empty spans at both ends of each span, which are inside exactly if it is."""
    spans = np.array(write.spans, dtype=np.int64).reshape(-1, 3)
    starts, ends = spans.copy(), spans.copy()
    ends[:, SOURCE] += spans[:, NUM_BYTES]
    ends[:, DESTINATION] += spans[:, NUM_BYTES]
    starts[:, NUM_BYTES] = ends[:, NUM_BYTES] = 0
    return [Span(*edge) for edge in np.concatenate([starts, ends]).tolist()]
