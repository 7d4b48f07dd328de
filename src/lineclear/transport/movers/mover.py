"""The contract of all movers: memories that others write into, writers, and the fence of a writer.

::

    decode process                                     prefill process
    memory = mover.open_memory(n)                      memory = mover.open_memory(m)
                                                       writer = mover.open_writer(memory)
    admission = memory.admit(identity)  ◀── identity ──
                                        ── memory.key ─▶  writer.post(ticket, key, spans)
                                        ◀── one-sided copy ──     │
                                                                  ▼
    admission.fence()                                  writer.poll() -> [Completion(ticket, ...)]

Life of a write::

    post ──▶ flying ──▶ DONE       everything is in the destination, and visible to it now
               ├──────▶ FAILED     it can neither land nor read its source any more; part of it may have landed
               └──────▶ UNKNOWN    nobody can tell ──▶ DONE or FAILED, late, or never

Invariants:
1. Each post is answered exactly once, whatever happens to either process, the memory or the transport. An UNKNOWN may
   be followed by one DONE or FAILED of the same ticket; nothing follows those two.
2. DONE and FAILED are proofs (R2). No timeout, closed socket, dropped handle or error with parts outstanding is one.
   A write that flies into a fence does not end DONE unless everything was in the memory before.
3. A post whose key is not understood, or one of whose spans is outside either memory, ends FAILED and changes no byte.
4. No byte outside its spans is changed by a post.
5. No two memories have the same key, not even those of two lives of one worker (R10).
6. After `Admission.fence` has returned True once, no byte written by that writer changes this memory again (R9).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from lineclear.base.errors import LineclearError


class MoverError(LineclearError):
    """A mover that cannot be had here, or a writer that cannot be admitted; the text says why."""


class Span(NamedTuple):
    """Bytes [source, source + num_bytes) of the writer's memory, for [destination, ...) of the other.

    Units: bytes, from the start of each memory's buffer.
    """

    source: int
    destination: int
    num_bytes: int


class Outcome(StrEnum):
    """What is known about a write."""

    DONE = "done"
    """All bytes are in the destination and visible to its process."""
    FAILED = "failed"
    """It ended without success: it can neither land nor read its source any more. Part of it may have landed."""
    UNKNOWN = "unknown"
    """It may still land, and still read its source. A proof may follow, late."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one post. `reason` is for people, and no part of equality."""

    ticket: int
    outcome: Outcome
    reason: str = field(default="", compare=False)


class Admission(Protocol):
    """One writer's life, as the memory that it may write into sees it."""

    def fence(self) -> bool:
        """Do what can be done against this writer; whether it is proven that it can write no more, for good.

        Order: repeat it until it returns True, and only then use the blocks again; then it stays True. What the writer
            posted before, posts later, or is just copying counts. The first call may end the writer's access, so no
            order may go to it any more.
        Cost: at most tens of milliseconds; never waits for the writer.
        """
        ...

    def close(self) -> None:
        """Forget the writer. It proves nothing, and may end the writer's access: for when nothing is owed any more."""
        ...


class Memory(Protocol):
    """KV memory of a process: written into by admitted writers, read by the process's own writer."""

    @property
    def num_bytes(self) -> int:
        """The size of the buffer."""
        ...

    @property
    def buffer(self) -> memoryview:
        """All bytes, writable, starting on a page: `torch.frombuffer` takes it."""
        ...

    @property
    def key(self) -> bytes:
        """What the writers admitted so far need to reach this memory; read it anew for each order.

        Units: at most some hundred bytes, and as many for each admitted writer.
        """
        ...

    def admit(self, identity: bytes) -> Admission:
        """Let a writer in. Needed once for each life of a writer, while it lives, before it can get the first order.

        Order: the key that the writer gets must have been read after this.
        Cost: at most tens of milliseconds.

        Raises:
            MoverError: That is no identity of this kind of mover, or this writer's end could never be proven from here.
        """
        ...

    def close(self) -> None:
        """Give the memory up. The pages stay while views of `buffer` do.

        Order: after the process's own writer is closed, and after its admissions are fenced or nothing is owed. Writes
            of others that are flying may still land in the pages: closing is no fence.
        """
        ...


class Writer(Protocol):
    """The writing side, with one `Memory` as the source of all its writes. One thread owns it."""

    @property
    def identity(self) -> bytes:
        """What a memory needs to admit this writer."""
        ...

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        """Begin one write of all spans; its completion names the ticket. Returns before the copy, whatever its size.

        The spans' source bytes must stay as they are until DONE or FAILED. Where destinations overlap, either wins.
        """
        ...

    def poll(self) -> list[Completion]:
        """Return what has become known since the last call, oldest first. Never waits.

        After `close` it returns what was still owed then.
        """
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable while `poll` may have something: for an event loop, until `close`."""
        ...

    def forget(self, memory_key: bytes) -> None:
        """Let go of a memory whose life is over, once nothing is flying to it. Unknown keys are nothing to forget."""
        ...

    def close(self) -> None:
        """End this writer and its threads. What is unanswered gets its answer, which `poll` still returns."""
        ...


class Mover(Protocol):
    """One way of moving bytes."""

    def open_memory(self, num_bytes: int) -> Memory:
        """Make a memory of zeros.

        Raises:
            MoverError: It cannot be had here.
        """
        ...

    def open_writer(self, memory: Memory) -> Writer:
        """Make a writer that reads from a memory of this mover.

        Order: close the writer before the memory.
        """
        ...
