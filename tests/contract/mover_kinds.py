"""The movers that are held to the contract, and wrong ones that must be caught, by name."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lineclear.transport.movers.delayed import DelayedMover, Delays
from lineclear.transport.movers.mover import Completion, Memory, Mover, Outcome, Span, Writer
from lineclear.transport.movers.nixl import NixlMover
from lineclear.transport.movers.nixl_memory import NixlAdmission
from lineclear.transport.movers.shm import ShmMover
from lineclear.transport.movers.shm_memory import ShmAdmission, ShmMemory, decode_key


class _FencedWhenStopped(ShmAdmission):
    """Takes a process that does not run for one that has ended."""

    def __init__(self, identity: bytes) -> None:
        super().__init__(identity)
        self._stat = Path(f"/proc/{decode_key(identity).life.pid}/stat")

    def fence(self) -> bool:
        return super().fence() or self._stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "tT"


class _FencedInTime(ShmAdmission):
    """Takes silence for an end."""

    def __init__(self, identity: bytes) -> None:
        super().__init__(identity)
        self._end = float("inf")

    def fence(self) -> bool:
        self._end = min(self._end, time.monotonic() + 0.1)
        return super().fence() or time.monotonic() > self._end


class _FencedAtAClosedLink(ShmAdmission):
    """Takes the end of a connection, here one that is never there, for the end of the process."""

    def fence(self) -> bool:
        return True


class _NeverFenced(ShmAdmission):
    def fence(self) -> bool:
        return False


class _Deregistered(NixlAdmission):
    """Shuts the door in the key only, as a deregistration does over TCP."""

    def fence(self) -> bool:
        self.is_shut = True
        return True

    def close(self) -> None:
        super().fence()


def _admitting(admission: Callable[[bytes], ShmAdmission]) -> Callable[[], Mover]:
    class WrongMemory(ShmMemory):
        def admit(self, identity: bytes) -> ShmAdmission:
            return admission(identity)

    class WrongMover(ShmMover):
        def open_memory(self, num_bytes: int) -> ShmMemory:
            return WrongMemory(num_bytes)

    return WrongMover


class _DeregisteringMover(NixlMover):
    def open_memory(self, num_bytes: int) -> Any:
        memory = super().open_memory(num_bytes)
        admit = memory.admit

        def admit_wrongly(identity: bytes) -> NixlAdmission:
            admission = admit(identity)
            admission.__class__ = _Deregistered
            return admission

        memory.admit = admit_wrongly  # type: ignore[method-assign]
        return memory


class _WrongWriter:
    """Does everything as the writer inside."""

    def __init__(self, inside: Writer, memory: Memory) -> None:
        self._inside = inside
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


class _DoneEarly(_WrongWriter):
    """Says that a write is done which has only been accepted."""

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        self._inside.post(ticket, memory_key, [])
        threading.Timer(0.2, self._inside.post, (1000 + ticket, memory_key, spans)).start()

    def poll(self) -> list[Completion]:
        return [each for each in self._inside.poll() if each.ticket < 1000]


class _AnswersTwice(_WrongWriter):
    def poll(self) -> list[Completion]:
        return [each for each in self._inside.poll() for _ in range(2)]


class _KeepsFailuresToItself(_WrongWriter):
    def poll(self) -> list[Completion]:
        return [each for each in self._inside.poll() if each.outcome is Outcome.DONE]


class _WritesOneMore(_WrongWriter):
    """Rounds up."""

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        self._inside.post(ticket, memory_key, [Span(a, b, n + (n > 1)) for a, b, n in spans])


class _WritesWhatFits(_WrongWriter):
    """Leaves out the wrong spans of a write, and then says that it failed."""

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        limit = self._memory.num_bytes
        self._inside.post(ticket, memory_key, [span for span in spans if 0 <= span[1] <= limit - span[2]])

    def poll(self) -> list[Completion]:
        return [Completion(each.ticket, Outcome.FAILED, "?") for each in self._inside.poll()]


class _AlwaysReadable(_WrongWriter):
    def poll(self) -> list[Completion]:
        answers = self._inside.poll()
        self._inside._reports._bell.ring()
        return answers


class _Spins(_WrongWriter):
    """Looks for work all the time."""

    def __init__(self, inside: Writer, memory: Memory) -> None:
        super().__init__(inside, memory)
        self._is_closed = False
        threading.Thread(target=self._spin, daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        self._inside.close()

    def _spin(self) -> None:
        while not self._is_closed:
            time.sleep(0)


class _KeepsItsThread(_WrongWriter):
    def close(self) -> None:
        pass


class _SaysFailedWhenItCloses(_WrongWriter):
    """Takes what it has given up for what has ended."""

    def __init__(self, inside: Writer, memory: Memory) -> None:
        super().__init__(inside, memory)
        self._open: set[int] = set()

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        self._open.add(ticket)
        self._inside.post(ticket, memory_key, spans)

    def poll(self) -> list[Completion]:
        tickets, self._open = self._open, set()
        return [Completion(ticket, Outcome.FAILED, "closed") for ticket in tickets]

    def close(self) -> None:
        pass


class _KeepsWhatItForgets(_WrongWriter):
    def forget(self, memory_key: bytes) -> None:
        pass


class _WrongMover:
    def __init__(self, inside: Mover, writer: type[_WrongWriter]) -> None:
        self._inside = inside
        self._writer = writer

    def open_memory(self, num_bytes: int) -> Memory:
        return self._inside.open_memory(num_bytes)

    def open_writer(self, memory: Memory) -> Any:
        return self._writer(self._inside.open_writer(memory), memory)


def _writing(writer: type[_WrongWriter], inside: Callable[[], Mover] = ShmMover) -> Callable[[], Mover]:
    return lambda: _WrongMover(inside(), writer)


def _slow() -> Mover:
    return DelayedMover(ShmMover(), Delays(max_run_seconds=4e-3))


MOVERS: dict[str, Callable[[], Mover]] = {
    "shm": ShmMover,
    "nixl": NixlMover,
    "delayed": lambda: DelayedMover(ShmMover(), Delays(max_run_seconds=20e-6, max_completion_seconds=2e-3), seed=1),
    "lossy": lambda: DelayedMover(ShmMover(), Delays(max_completion_seconds=2e-3, lost_share=0.5), seed=2),
    "fenced when stopped": _admitting(_FencedWhenStopped),
    "fenced in time": _admitting(_FencedInTime),
    "fenced at a closed link": _admitting(_FencedAtAClosedLink),
    "never fenced": _admitting(_NeverFenced),
    "fenced by deregistering": _DeregisteringMover,
    "done early": _writing(_DoneEarly),
    "writes one more": _writing(_WritesOneMore),
    "writes what fits": _writing(_WritesWhatFits),
    "answers twice": _writing(_AnswersTwice),
    "keeps failures to itself": _writing(_KeepsFailuresToItself),
    "says failed when it closes": _writing(_SaysFailedWhenItCloses, _slow),
    "always readable": _writing(_AlwaysReadable),
    "spins": _writing(_Spins),
    "keeps its thread": _writing(_KeepsItsThread),
    "keeps what it forgets": _writing(_KeepsWhatItForgets),
}
