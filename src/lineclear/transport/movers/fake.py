"""A mover within one process, whose writes land when the test says so, run by run.

::

    writer.post(7, key, spans)      flying; nothing has landed
    writer.land(7, num_runs=1)      the first run is in the destination
    writer.lose(7)                  UNKNOWN is reported; it goes on flying
    writer.land(7)                  the rest is there; DONE, late
    writer.fail(7)                  or: FAILED; nothing more of it lands

A run is a span, after spans that are adjacent on both sides have been joined. With `lands_at_once` a write lands when
it is posted, so that a driver that knows nothing of fakes gets its completions.

The fence follows what it stands for: by default only `kill` makes it true (`shm`); with `fences_the_living` it cuts the
writer off, and what still flies ends FAILED (`nixl`). `refuse_fences` on an admission holds it back as long as a test
wants.
"""

import mmap
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from lineclear.engine.copying import Runs, copy_runs
from lineclear.transport.movers.mover import Completion, Memory, MoverError, Outcome, Span
from lineclear.transport.movers.spans import SpanError, checked_runs
from lineclear.transport.movers.threaded_writer import Reports


class FakeMover:
    """A world of memories and writers that reach each other, and nobody else's."""

    def __init__(self, *, lands_at_once: bool = False, fences_the_living: bool = False) -> None:
        self._lands_at_once = lands_at_once
        self._fences_the_living = fences_the_living
        self._memories: dict[bytes, FakeMemory] = {}
        self._writers: dict[bytes, FakeWriter] = {}

    def open_memory(self, num_bytes: int) -> "FakeMemory":
        """Make a memory of zeros."""
        memory = FakeMemory(num_bytes, self._writers, fences_the_living=self._fences_the_living)
        self._memories[memory.key] = memory
        return memory

    def open_writer(self, memory: Memory) -> "FakeWriter":
        """Make a writer that reads from one of these memories."""
        assert isinstance(memory, FakeMemory), type(memory)
        writer = FakeWriter(memory, self._memories, lands_at_once=self._lands_at_once)
        self._writers[writer.identity] = writer
        return writer


class FakeMemory:
    """Pages of this process."""

    def __init__(self, num_bytes: int, writers: "dict[bytes, FakeWriter]", *, fences_the_living: bool) -> None:
        self._num_bytes = num_bytes
        self._buffer = memoryview(mmap.mmap(-1, num_bytes))
        self._key = b"fake memory " + secrets.token_bytes(16)
        self._writers = writers
        self._fences_the_living = fences_the_living
        self._fenced: set[bytes] = set()
        self._is_closed = False

    @property
    def num_bytes(self) -> int:
        """The size of the buffer."""
        return self._num_bytes

    @property
    def buffer(self) -> memoryview:
        """All bytes, writable."""
        return self._buffer

    @property
    def key(self) -> bytes:
        """The same for all writers."""
        return self._key

    def admit(self, identity: bytes) -> "FakeAdmission":
        """Let a writer in.

        Raises:
            MoverError: It is no writer of this world, or a dead one.
        """
        writer = self._writers.get(identity)
        if writer is None or not writer.is_alive:
            raise MoverError("no living writer has this identity")
        return FakeAdmission(self, writer, fences_the_living=self._fences_the_living)

    def close(self) -> None:
        """Give the memory up: what would still land in it ends FAILED."""
        self._is_closed = True

    def shut_out(self, identity: bytes) -> None:
        """Let nothing of that writer land any more."""
        self._fenced.add(identity)

    def refusal(self, identity: bytes) -> str | None:
        """Why nothing of that writer can land, or `None` if it can."""
        if self._is_closed:
            return "the memory is closed"
        return "the writer is fenced" if identity in self._fenced else None


class FakeAdmission:
    """One writer, as one memory sees it."""

    def __init__(self, memory: FakeMemory, writer: "FakeWriter", *, fences_the_living: bool) -> None:
        self._memory = memory
        self._writer = writer
        self._fences_the_living = fences_the_living
        self._has_fenced = False
        self.refuse_fences = False

    def fence(self) -> bool:
        """Whether the writer is killed, or cut off now."""
        if not self._has_fenced and not self.refuse_fences and (self._fences_the_living or not self._writer.is_alive):
            self._has_fenced = True
            self._memory.shut_out(self._writer.identity)
        return self._has_fenced

    def close(self) -> None:
        """Forget the writer."""


@dataclass
class _Flight:
    memory: FakeMemory
    runs: Runs
    num_landed: int = 0
    is_lost: bool = False


class FakeWriter:
    """Writes that fly until they are told what becomes of them."""

    def __init__(self, source: FakeMemory, memories: dict[bytes, FakeMemory], *, lands_at_once: bool) -> None:
        self._source = source
        self._memories = memories
        self._lands_at_once = lands_at_once
        self._identity = b"fake writer " + secrets.token_bytes(16)
        self._flights: dict[int, _Flight] = {}
        self._reports = Reports()
        self._is_closed = False
        self.is_alive = True

    @property
    def identity(self) -> bytes:
        """What a memory needs to admit this writer."""
        return self._identity

    @property
    def flying(self) -> tuple[int, ...]:
        """Tickets of writes that may still land, lost ones included, in the order of their posts."""
        return tuple(self._flights)

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        """Begin one write."""
        assert not self._is_closed, "posted to a closed writer"
        assert ticket not in self._flights, f"ticket {ticket} is flying"
        memory = self._memories.get(memory_key)
        if memory is None:
            self._report(ticket, Outcome.FAILED, "no memory has this key")
            return
        try:
            runs = checked_runs(spans, self._source.num_bytes, memory.num_bytes)
        except SpanError as error:
            self._report(ticket, Outcome.FAILED, str(error))
            return
        self._flights[ticket] = _Flight(memory, runs)
        if self._lands_at_once:
            self.land(ticket)

    def land(self, ticket: int, num_runs: int | None = None) -> None:
        """Let the next runs of a write land, or all that are left; after the last one it is DONE."""
        flight = self._flights[ticket]
        if (refusal := flight.memory.refusal(self._identity)) is not None:
            self.fail(ticket, refusal)
            return
        end = len(flight.runs) if num_runs is None else min(flight.num_landed + num_runs, len(flight.runs))
        copy_runs(self._source.buffer, flight.memory.buffer, flight.runs[flight.num_landed : end], lambda: False)
        flight.num_landed = end
        if end == len(flight.runs):
            del self._flights[ticket]
            self._report(ticket, Outcome.DONE)

    def fail(self, ticket: int, reason: str = "told to fail") -> None:
        """End a write: nothing more of it lands."""
        del self._flights[ticket]
        self._report(ticket, Outcome.FAILED, reason)

    def lose(self, ticket: int) -> None:
        """Report a write as UNKNOWN. It goes on flying, and can still land or fail."""
        flight = self._flights[ticket]
        assert not flight.is_lost, f"ticket {ticket} has been reported as unknown"
        flight.is_lost = True
        self._report(ticket, Outcome.UNKNOWN, "told to be lost")

    def kill(self) -> None:
        """End the writer as a process ends: nothing lands and nothing is reported any more."""
        self.is_alive = False
        self._flights.clear()

    def poll(self) -> list[Completion]:
        """Return what has become known since the last call."""
        return self._reports.take()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._reports.fileno()

    def forget(self, memory_key: bytes) -> None:
        """Do nothing: a fake maps nothing."""

    def close(self) -> None:
        """End the writer; what is flying ends FAILED."""
        if self._is_closed:
            return
        for ticket in self.flying:
            self.fail(ticket, "the writer was closed")
        self._is_closed = True
        self._reports.close()

    def _report(self, ticket: int, outcome: Outcome, reason: str = "") -> None:
        if self.is_alive:
            self._reports.put(Completion(ticket, outcome, reason))
