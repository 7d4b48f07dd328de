"""The work of a writer through NIXL: it begins what is posted, drives it on, and says how it ended.

One agent for each memory that is written to, opened with the first write. What is DONE is known from UCX, which flushes
the connection after the bytes and waits for the peer's answer.

**A write that breaks off is UNKNOWN.** The error says that the connection is gone, not where the bytes are: what the
kernel has taken from us may still be read and put in place by the peer. NIXL has no cancel: a released request goes on
landing (measured, nixl-cu13 1.5.1: of 256 MiB all landed after the release had returned success). So the connection's
agent is destroyed, which ends every read of the source, and the rest is waited for: when the process of the memory is
seen ended on this host, nothing can put bytes in place any more, and FAILED follows. Of a process on another host that
is never seen. A broken memory is never written to again.
"""

import time
from typing import Final

import numpy as np

from lineclear.engine.copying import Runs
from lineclear.transport.movers.mover import Completion, MoverError, Outcome
from lineclear.transport.movers.nixl_agent import NixlAgent
from lineclear.transport.movers.nixl_bindings import NixlBindings
from lineclear.transport.movers.nixl_memory import Door, NixlKey, NixlMemory, decode_key
from lineclear.transport.movers.process_life import ProcessLife, ProcessWatch, is_of_this_host
from lineclear.transport.movers.spans import checked_runs
from lineclear.transport.movers.threaded_writer import Forget, Orders, Reports, Write

FLYING_LOOK_SECONDS: Final = 100e-6
"""How often flying writes are driven on: at 50 to 100 µs 64 MiB flew fastest, at 300 µs a tenth slower."""
STUCK_SECONDS: Final = 1.0
STUCK_LOOK_SECONDS: Final = 0.002
"""How often, when nothing has begun or ended for so long: the peer may be stopped, and stay so."""
LOST_LOOK_SECONDS: Final = 0.05
"""How often the process of a broken memory is looked at."""


class NixlPoster:
    """Writes from one memory into those that keys name."""

    def __init__(self, bindings: NixlBindings, source: NixlMemory, name: bytes) -> None:
        self._bindings = bindings
        self._source = source.buffer
        self._name = name
        self._destinations: dict[bytes, _Destination] = {}
        self._moved_seconds = 0.0
        """When a write has begun or ended last."""

    def work(self, orders: Orders, reports: Reports) -> None:
        """Answer all orders."""
        while True:
            order = orders.take(self._patience())
            match order:
                case Write():
                    self._begin(order, orders, reports)
                case Forget():
                    self._forget(order.memory_key)
                case None if orders.is_over:
                    break
                case None:
                    pass
            self._look(reports)
        for destination in self._destinations.values():
            _put_all(reports, destination.end("the writer was closed"))
            destination.close()
        self._source = memoryview(b"")

    def _patience(self) -> float | None:
        if any(destination.is_flying for destination in self._destinations.values()):
            is_stuck = time.monotonic() - self._moved_seconds > STUCK_SECONDS
            return STUCK_LOOK_SECONDS if is_stuck else FLYING_LOOK_SECONDS
        return LOST_LOOK_SECONDS if any(each.has_lost for each in self._destinations.values()) else None

    def _look(self, reports: Reports) -> None:
        for destination in self._destinations.values():
            if completions := destination.look():
                self._moved_seconds = time.monotonic()
                _put_all(reports, completions)

    def _begin(self, write: Write, orders: Orders, reports: Reports) -> None:
        self._moved_seconds = time.monotonic()
        if orders.is_closing:
            reports.put(Completion(write.ticket, Outcome.FAILED, "the writer was closed"))
            return
        try:
            key = decode_key(write.memory_key)
            runs = checked_runs(write.spans, len(self._source), key.num_bytes)
            completions = self._destination(key).begin(write.ticket, runs)
        except Exception as error:  # noqa: BLE001 - every post is answered, and nothing of this one was sent
            completions = [Completion(write.ticket, Outcome.FAILED, str(error))]
        _put_all(reports, completions)

    def _destination(self, key: NixlKey) -> "_Destination":
        destination = self._destinations.get(key.name)
        if destination is None:
            door = key.doors.get(self._name)
            if door is None:
                raise MoverError("the memory has no door for this writer")
            destination = _Destination(self._bindings, self._source, door, key.life)
            self._destinations[key.name] = destination
        return destination

    def _forget(self, memory_key: bytes) -> None:
        try:
            name = decode_key(memory_key).name
        except MoverError:
            return
        destination = self._destinations.get(name)
        if destination is not None and not destination.is_flying and not destination.has_lost:
            destination.end("the memory was forgotten")
            destination.close()
            del self._destinations[name]


class _Destination:
    """A memory, the connection to it, and what flies there."""

    def __init__(self, bindings: NixlBindings, source: memoryview, door: Door, life: ProcessLife) -> None:
        """Connect.

        Raises:
            MoverError: Its process has ended, or NIXL cannot.
        """
        self._door_address = door.address
        self._flights: dict[int, int] = {}
        self._lost: list[int] = []
        self._is_broken = False
        self._watch = ProcessWatch(life) if is_of_this_host(life) else None
        try:
            address = np.frombuffer(source, dtype=np.uint8).ctypes.data
            self._agent = NixlAgent(bindings, address, len(source), serves=False)
            self._agent.connect(door.metadata)
        except MoverError:
            self._close_watch()
            raise

    @property
    def is_flying(self) -> bool:
        """Whether there is something to drive on."""
        return bool(self._flights)

    @property
    def has_lost(self) -> bool:
        """Whether a late proof is waited for."""
        return bool(self._lost) and self._watch is not None

    def begin(self, ticket: int, runs: Runs) -> list[Completion]:
        """Begin a write; return what is known by that.

        Raises:
            MoverError: Nothing of it was sent.
        """
        if self._is_broken:
            raise MoverError("the connection to this memory broke before")
        if not len(runs):
            return [Completion(ticket, Outcome.DONE)]
        self._flights[ticket] = request = self._agent.prepare(runs, self._door_address)
        try:
            return self._finish(ticket) if self._agent.begin(request) else []
        except MoverError as error:
            return self.end(str(error))

    def look(self) -> list[Completion]:
        """Drive flying writes on, and look for late proofs; return what is known by that."""
        completions: list[Completion] = []
        for ticket, request in list(self._flights.items()):
            try:
                if self._agent.look(request):
                    completions += self._finish(ticket)
            except MoverError as error:
                return completions + self.end(str(error))
        return completions + self._late_proofs()

    def end(self, reason: str) -> list[Completion]:
        """Close the connection, and say what that means for what flies."""
        self._is_broken = True
        lost = list(self._flights)
        self._flights.clear()
        has_closed = self._agent.destroy()
        if has_closed and self._watch is not None and self._watch.has_ended():
            return [Completion(ticket, Outcome.FAILED, reason) for ticket in lost]
        if has_closed:
            self._lost += lost
        return [Completion(ticket, Outcome.UNKNOWN, reason) for ticket in lost]

    def close(self) -> None:
        """Stop waiting for late proofs."""
        self._close_watch()

    def _finish(self, ticket: int) -> list[Completion]:
        self._agent.release(self._flights.pop(ticket))
        return [Completion(ticket, Outcome.DONE)]

    def _late_proofs(self) -> list[Completion]:
        if not self._lost or self._watch is None or not self._watch.has_ended():
            return []
        proven, self._lost = self._lost, []
        self._close_watch()
        return [Completion(ticket, Outcome.FAILED, "the process of the memory has ended") for ticket in proven]

    def _close_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()


def _put_all(reports: Reports, completions: list[Completion]) -> None:
    for completion in completions:
        reports.put(completion)
