"""Streams on which copies run beside the computation, and the events by which others wait for their parts.

    owner: start ──▶ stream: step 0, event 0, step 1, event 1, … ──▶ owner: poll
                                    ▲ wait(part_idx)

A step copies one part of one layer; its event comes when that is visible to whoever waits. A step that fails is the end
of its transfer: the other events come all the same, so that nobody hangs, and the transfer says that it has failed.

On the CPU a stream is a thread and an event a threading event. On CUDA both are CUDA's; `wait` then makes the current
stream wait and not the caller.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch

from lineclear.engine.bell import Bell
from lineclear.kv.copies import CopyId

Step: TypeAlias = Callable[[], None]


class Transfer(Protocol):
    """One copy under way."""

    @property
    def copy_id(self) -> CopyId:
        """The copy's."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether it has ended without bringing everything. Order: after `wait_all`, or from `poll`."""
        ...

    @property
    def seconds(self) -> float:
        """How long it ran. Order: after it has ended."""
        ...

    def is_visible(self, step_idx: int) -> bool:
        """Whether what comes after this sees the step's copy: it is done, or was waited for."""
        ...

    def wait(self, step_idx: int) -> float:
        """Let what comes after this see the step's copy; return how many seconds the caller waited for it."""
        ...

    def wait_all(self) -> None:
        """Return when nothing of it runs any more."""
        ...


class CopyStream(Protocol):
    """Runs one transfer after the other."""

    def start(self, copy_id: CopyId, steps: Sequence[Step]) -> Transfer:
        """Begin a transfer: it sees all that the caller has computed so far."""
        ...

    def poll(self) -> list[Transfer]:
        """Return, once, the transfers that have ended since the last call."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that is readable while there may be some."""
        ...

    def close(self) -> None:
        """Let what runs end, and the stream with it."""
        ...


class _Ended:
    """Transfers that have ended, on their way to the owner."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Transfer] = queue.SimpleQueue()
        self._bell = Bell()

    def put(self, transfer: Transfer) -> None:
        self._queue.put(transfer)
        self._bell.ring()

    def take(self) -> list[Transfer]:
        self._bell.silence()
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    def fileno(self) -> int:
        return self._bell.fileno()

    def close(self) -> None:
        self._bell.close()


class ThreadTransfer:
    """A transfer of a `ThreadStream`."""

    def __init__(self, copy_id: CopyId, steps: Sequence[Step]) -> None:
        self._copy_id = copy_id
        self._steps = steps
        self._events = [threading.Event() for _ in steps]
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._seconds = 0.0

    @property
    def copy_id(self) -> CopyId:
        """The copy's."""
        return self._copy_id

    @property
    def has_failed(self) -> bool:
        """Whether a step has raised."""
        return self._error is not None

    @property
    def seconds(self) -> float:
        """From its first step to its last."""
        return self._seconds

    def is_visible(self, step_idx: int) -> bool:
        """Whether the step is done."""
        return self._events[step_idx].is_set()

    def wait(self, step_idx: int) -> float:
        """Wait in the calling thread."""
        event = self._events[step_idx]
        if event.is_set():
            return 0.0
        started = time.perf_counter()
        event.wait()
        return time.perf_counter() - started

    def wait_all(self) -> None:
        """Wait in the calling thread."""
        self._is_over.wait()

    def run(self, before_step: Step) -> None:
        """Run all steps in the calling thread."""
        started = time.perf_counter()
        try:
            for step, event in zip(self._steps, self._events, strict=True):
                before_step()
                step()
                event.set()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may hang on it
            self._error = error
        self._seconds = time.perf_counter() - started
        for event in self._events:
            event.set()
        self._is_over.set()


def _at_once() -> None:
    """No delay."""


class ThreadStream:
    """A thread.

    Args:
        name: of the thread.
        before_step: called in the thread before each step; tests delay and fail copies with it.
    """

    def __init__(self, name: str, before_step: Step = _at_once) -> None:
        self._before_step = before_step
        self._queue: queue.SimpleQueue[ThreadTransfer | None] = queue.SimpleQueue()
        self._ended = _Ended()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, copy_id: CopyId, steps: Sequence[Step]) -> Transfer:
        """Put it at the end of the thread's work."""
        transfer = ThreadTransfer(copy_id, steps)
        self._queue.put(transfer)
        return transfer

    def poll(self) -> list[Transfer]:
        """Those that have ended."""
        return self._ended.take()

    def fileno(self) -> int:
        """The thread's bell."""
        return self._ended.fileno()

    def close(self) -> None:
        """Join the thread."""
        self._queue.put(None)
        self._thread.join()
        self._ended.close()

    def _run(self) -> None:
        while (transfer := self._queue.get()) is not None:
            transfer.run(self._before_step)
            self._ended.put(transfer)


class CudaTransfer:
    """A transfer of a `CudaStream`."""

    def __init__(self, copy_id: CopyId, started: torch.cuda.Event, events: Sequence[torch.cuda.Event]) -> None:
        self._copy_id = copy_id
        self._started = started
        self._events = events
        self._awaited: set[int] = set()

    @property
    def copy_id(self) -> CopyId:
        """The copy's."""
        return self._copy_id

    @property
    def has_failed(self) -> bool:
        """Never: a CUDA copy that fails takes the process with it."""
        return False

    @property
    def seconds(self) -> float:
        """By the device's clock."""
        return self._started.elapsed_time(self._events[-1]) / 1000

    def is_visible(self, step_idx: int) -> bool:
        """Whether a stream waits for the step, or it is done."""
        return step_idx in self._awaited or self._events[step_idx].query()

    def wait(self, step_idx: int) -> float:
        """Let the current stream wait; the caller does not."""
        self._awaited.add(step_idx)
        torch.cuda.current_stream().wait_event(self._events[step_idx])
        return 0.0

    def wait_all(self) -> None:
        """Wait in the calling thread."""
        self._events[-1].synchronize()


class CudaStream:
    """A side stream of a device, and a thread that tells the owner of each end."""

    def __init__(self, name: str, device: torch.device, before_step: Step = _at_once) -> None:
        self._device = device
        self._before_step = before_step
        self._stream = torch.cuda.Stream(device)
        self._queue: queue.SimpleQueue[CudaTransfer | None] = queue.SimpleQueue()
        self._ended = _Ended()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def start(self, copy_id: CopyId, steps: Sequence[Step]) -> Transfer:
        """Enqueue it behind all that the current stream has been given so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        started = torch.cuda.Event(enable_timing=True)
        events: list[torch.cuda.Event] = []
        with torch.cuda.stream(self._stream):
            started.record(self._stream)
            for step in steps:
                self._before_step()
                step()
                event = torch.cuda.Event(enable_timing=True)
                event.record(self._stream)
                events.append(event)
        transfer = CudaTransfer(copy_id, started, events)
        self._queue.put(transfer)
        return transfer

    def poll(self) -> list[Transfer]:
        """Those that have ended."""
        return self._ended.take()

    def fileno(self) -> int:
        """The watching thread's bell."""
        return self._ended.fileno()

    def close(self) -> None:
        """Join the thread."""
        self._queue.put(None)
        self._thread.join()
        self._ended.close()

    def _watch(self) -> None:
        while (transfer := self._queue.get()) is not None:
            transfer.wait_all()
            self._ended.put(transfer)
