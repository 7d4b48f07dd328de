"""The work of a writer of shared memory: it copies what is posted, in order.

A copy is over when the thread has left it, so every answer is a proof: there is no UNKNOWN. A copy that `close` stops
ends FAILED between two runs. A memory whose process has ended is written to all the same, and the answer is DONE: the
pages are this writer's own by then, until they are forgotten.
"""

from lineclear.engine.copying import copy_runs
from lineclear.transport.movers.mover import Completion, MoverError, Outcome
from lineclear.transport.movers.shm_memory import ShmDestination, ShmMemory
from lineclear.transport.movers.spans import checked_runs
from lineclear.transport.movers.threaded_writer import Forget, Orders, Reports, Write


class ShmCopier:
    """Copies from one memory into those that keys name, each mapped once."""

    def __init__(self, source: ShmMemory) -> None:
        self._source = source.buffer
        self._destinations: dict[bytes, ShmDestination] = {}

    def work(self, orders: Orders, reports: Reports) -> None:
        """Answer all orders."""
        while (order := orders.take(None)) is not None:
            match order:
                case Write():
                    reports.put(self._answer(order, orders))
                case Forget():
                    self._unmap(order.memory_key)
        for memory_key in list(self._destinations):
            self._unmap(memory_key)
        self._source = memoryview(b"")

    def _answer(self, write: Write, orders: Orders) -> Completion:
        try:
            return self._write(write, orders)
        except MoverError as error:
            return Completion(write.ticket, Outcome.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - every post is answered, and this copy is over
            return Completion(write.ticket, Outcome.FAILED, f"the copy broke off: {error!r}")

    def _write(self, write: Write, orders: Orders) -> Completion:
        destination = self._destination(write.memory_key)
        runs = checked_runs(write.spans, len(self._source), destination.num_bytes)
        if copy_runs(self._source, destination.buffer, runs, lambda: orders.is_closing):
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
