"""The writer of shared memory: one thread that copies what is posted, in order.

::

    owner                         thread
    post ──────── orders ───────▶ check, map, copy ──┐
    poll ◀─────── reports ───────────────────────────┘

A copy is over when the thread has left it, so every outcome here is a proof: there is no UNKNOWN. A copy that `close`
stops ends FAILED between two runs. A destination whose process has ended is written to all the same, and the answer is
DONE: the pages are this writer's own by then.
"""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lineclear.transport.movers.copying import copy_runs
from lineclear.transport.movers.mover import Completion, MoverError, Outcome, Span
from lineclear.transport.movers.reports import Reports
from lineclear.transport.movers.shm_memory import ShmDestination, ShmMemory
from lineclear.transport.movers.spans import checked_runs


@dataclass(frozen=True, slots=True)
class _Write:
    ticket: int
    memory_key: bytes
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True)
class _Forget:
    memory_key: bytes


_Order: TypeAlias = _Write | _Forget | None
"""`None` is the last one."""


class ShmWriter:
    """Writes from one `ShmMemory`."""

    def __init__(self, source: ShmMemory) -> None:
        self._source = source.buffer
        self._identity = source.key
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._reports = Reports()
        self._is_closed = False
        self._destinations: dict[bytes, ShmDestination] = {}
        self._thread = threading.Thread(target=self._run, name="shm-writer", daemon=True)
        self._thread.start()

    @property
    def identity(self) -> bytes:
        """What a memory needs to admit this writer."""
        return self._identity

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        """Begin one write."""
        assert not self._is_closed, "posted to a closed writer"
        self._orders.put(_Write(ticket, memory_key, spans))

    def poll(self) -> list[Completion]:
        """Return what has become known since the last call."""
        return self._reports.take()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._reports.fileno()

    def forget(self, memory_key: bytes) -> None:
        """Unmap a memory, after what was posted to it."""
        if not self._is_closed:
            self._orders.put(_Forget(memory_key))

    def close(self) -> None:
        """Stop the copy that is going on, fail the rest, join the thread and unmap everything."""
        if self._is_closed:
            return
        self._is_closed = True
        self._orders.put(None)
        self._thread.join()
        self._reports.close()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            match order:
                case _Write():
                    self._reports.put(self._answer(order))
                case _Forget():
                    self._unmap(order.memory_key)
        for memory_key in list(self._destinations):
            self._unmap(memory_key)
        self._source = memoryview(b"")

    def _answer(self, write: _Write) -> Completion:
        try:
            return self._write(write)
        except MoverError as error:
            return Completion(write.ticket, Outcome.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - every post is answered, and this copy is over
            return Completion(write.ticket, Outcome.FAILED, f"the copy broke off: {error!r}")

    def _write(self, write: _Write) -> Completion:
        destination = self._destination(write.memory_key)
        runs = checked_runs(write.spans, len(self._source), destination.num_bytes)
        if copy_runs(self._source, destination.buffer, runs, lambda: self._is_closed):
            return Completion(write.ticket, Outcome.DONE)
        return Completion(write.ticket, Outcome.FAILED, "the writer was closed")

    def _destination(self, memory_key: bytes) -> ShmDestination:
        destination = self._destinations.get(memory_key)
        if destination is None:
            destination = self._destinations[memory_key] = ShmDestination(memory_key)
        return destination

    def _unmap(self, memory_key: bytes) -> None:
        destination = self._destinations.pop(memory_key, None)
        if destination is not None:
            destination.close()
