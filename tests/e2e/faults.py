"""Faults at chosen phases of a handoff, and the proof that they fired.

A worker of the lab has a folder in which the test *arms* one fault at a time: the phase, how often the phase has to be
reached first, and what happens then. When it is reached the worker writes one line to `fired.jsonl` and has it on the
disk before anything happens to it. The line names the handoff, so a fault without a line did not happen, and a line
says which handoff it met.

    test    arm ──▶ WORKER.armed ┐                             ┌──▶ fired.jsonl ──▶ read_fired
    worker                       └─▶ reach(phase), nth: disarm ┴──▶ kill · stop · reset · hold ──▶ goes on
    test                                                              NUMBER.released ──────────┘

The phases are moments between two effects of the production machines: nothing is faked, only interrupted.
"""

import ctypes
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

_LOOK_SECONDS = 0.005
"""How often a worker that is held looks whether it is released."""

_libc = ctypes.CDLL(None, use_errno=True)


class Phase(StrEnum):
    """Where in a handoff; the first five are moments of a prefill instance, the others of a decode worker."""

    ORDER_ARRIVED = "order_arrived"
    """A new order is read, nothing is decided."""
    PART_LANDED = "part_landed"
    """The first run of a write is in the destination; the rest of it is still to be copied."""
    WRITTEN_UNTOLD = "written_untold"
    """Everything is written and proven, `WritesDone` is not sent."""
    ABORT_ARRIVED = "abort_arrived"
    """An abort of something that may still write is read, nothing is decided."""
    CLEAR_UNTOLD = "clear_untold"
    """The record is forgotten, `LineClear` is not sent."""
    ORDER_SENT = "order_sent"
    """The order is with the kernel."""
    READY_UNUSED = "ready_unused"
    """All has arrived and belongs to the sequence, no step has read it, and the writers' holds have not ended."""
    ABORT_SENT = "abort_sent"
    """The abort is with the kernel, no answer has come."""
    ANSWERING = "answering"
    """After the handoff: a part of the answer has gone out, more of it is computed and has not."""

    @property
    def is_at_prefill(self) -> bool:
        """Whether a prefill instance gets there, and not a decode worker."""
        return self not in {Phase.ORDER_SENT, Phase.READY_UNUSED, Phase.ABORT_SENT, Phase.ANSWERING}


class Fault(StrEnum):
    """What happens to the process that gets there."""

    KILL = "kill"
    STOP = "stop"
    """SIGSTOP; somebody else sends SIGCONT."""
    RESET = "reset"
    """Each of its connections to other workers is reset, seen by both ends as if something between them had done it."""
    HOLD = "hold"
    """The thread waits until it is released; in the mover that is a write that takes its time."""


class Armed(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that waits for its phase."""

    number: int
    phase: Phase
    fault: Fault
    nth: int = 1


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that has its phase: written before it happens."""

    number: int
    phase: Phase
    fault: Fault
    worker_id: str
    pid: int
    handoff: str
    """Decode worker, its life, and the number of the attempt."""
    at_seconds: float
    """On the clock of the host."""


class Faults:
    """A worker's side: what its lab parts call when they get somewhere."""

    def __init__(self, folder: Path, worker_id: str) -> None:
        self._folder = folder
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._number = 0
        self._num_reached = 0
        self.connections: Callable[[], Iterable[socket.socket]] = tuple
        """Those that `RESET` resets."""

    def reach(self, phase: Phase, handoff: str) -> None:
        """A handoff is at a phase: if that is what is armed, it happens now."""
        with self._lock:
            armed = self._take(phase)
        if armed is None:
            return
        fired = Fired(
            number=armed.number,
            phase=phase,
            fault=armed.fault,
            worker_id=self._worker_id,
            pid=os.getpid(),
            handoff=handoff,
            at_seconds=time.monotonic(),
        )
        _append_durably(self._folder / "fired.jsonl", msgspec.json.encode(fired) + b"\n")
        self._bring_about(armed)

    def _take(self, phase: Phase) -> Armed | None:
        path = _armed_path(self._folder, self._worker_id)
        try:
            armed = msgspec.json.decode(path.read_bytes(), type=Armed)
        except FileNotFoundError:
            return None
        if armed.phase is not phase:
            return None
        self._num_reached = self._num_reached + 1 if armed.number == self._number else 1
        self._number = armed.number
        if self._num_reached < armed.nth:
            return None
        path.unlink()
        return armed

    def _bring_about(self, armed: Armed) -> None:
        match armed.fault:
            case Fault.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.STOP:
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # this thread runs no further meanwhile
            case Fault.RESET:
                for connection in self.connections():
                    _reset(connection)
            case Fault.HOLD:
                while not _released_path(self._folder, armed.number).exists():
                    time.sleep(_LOOK_SECONDS)


class FaultFolder:
    """The test's side."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_armed = 0

    def arm(self, worker_id: str, phase: Phase, fault: Fault, nth: int = 1) -> int:
        """Let a fault happen to a worker; returns its number."""
        self._num_armed += 1
        path = _armed_path(self._folder, worker_id)
        draft = path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(Armed(number=self._num_armed, phase=phase, fault=fault, nth=nth)))
        draft.rename(path)
        return self._num_armed

    def read_fired(self, number: int) -> Fired | None:
        """The proof that a fault happened, once there is one."""
        path = self._folder / "fired.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        fired = [msgspec.json.decode(line, type=Fired) for line in lines]
        return next((each for each in fired if each.number == number), None)

    def release(self, number: int) -> None:
        """Let a worker that is held go on."""
        _released_path(self._folder, number).touch()

    def disarm(self, worker_id: str) -> None:
        """Whatever is armed does not happen any more."""
        _armed_path(self._folder, worker_id).unlink(missing_ok=True)


def _armed_path(folder: Path, worker_id: str) -> Path:
    return folder / f"{worker_id}.armed"


def _released_path(folder: Path, number: int) -> Path:
    return folder / f"{number}.released"


def _append_durably(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reset(connection: socket.socket) -> None:
    """Connecting a TCP socket to nowhere sends RST and leaves the descriptor to its owner, who finds it reset too."""
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)
    if _libc.connect(connection.fileno(), nowhere, len(nowhere)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
