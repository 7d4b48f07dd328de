"""One thread a lane, which does its jobs one after the other.

On CUDA a thread has a side stream, too: a job's work comes after what the caller's stream was given before the job, and
`wait` makes the waiting stream come after the job.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

Job = Callable[[], None]


class LanePending:
    """A job that was begun."""

    def __init__(self, job: Job, submitted: torch.cuda.Event | None) -> None:
        self._job = job
        self._submitted = submitted
        self._is_over = threading.Event()
        self._done: torch.cuda.Event | None = None
        self._error: Exception | None = None

    def wait(self) -> None:
        """Wait for its end. Raises: what the job raised."""
        self._is_over.wait()
        if self._error is not None:
            raise self._error
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)

    def run(self, stream: torch.cuda.Stream | None) -> None:
        """Do the job in the calling thread."""
        try:
            if stream is not None and self._submitted is not None:
                stream.wait_event(self._submitted)
            self._job()
            if stream is not None:
                self._done = _recorded(stream)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits
            self._error = error
        self._is_over.set()


class LaneThread:
    """A thread.

    Args:
        name: of the thread.
        device: where payloads live.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._queue: queue.SimpleQueue[LanePending | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> LanePending:
        """Put a job at the end of the thread's work."""
        submitted = None if self._stream is None else _recorded(torch.cuda.current_stream(self._device))
        pending = LanePending(job, submitted)
        self._queue.put(pending)
        return pending

    def close(self) -> None:
        """Join the thread, when it has done what it was given."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        on_stream: AbstractContextManager[object] = nullcontext()
        if self._stream is not None:
            on_stream = torch.cuda.stream(self._stream)
        with on_stream, torch.inference_mode():
            while (pending := self._queue.get()) is not None:
                pending.run(self._stream)


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event
