"""A writer whose work is done by one thread of its own.

::

    owner                          thread
    post, forget ──── orders ────▶ work(orders, reports) ──┐
    poll ◀─────────── reports ─────────────────────────────┘
"""

import atexit
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lineclear.engine.bell import Bell
from lineclear.transport.movers.mover import Completion, Span


@dataclass(frozen=True, slots=True)
class Write:
    """One write to make, and to answer."""

    ticket: int
    memory_key: bytes
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True)
class Forget:
    """A memory to let go of."""

    memory_key: bytes


Order: TypeAlias = Write | Forget


class Orders:
    """What the owner wants, in order.

    Not a `SimpleQueue`: its `get` waits for ever if the time is over when it looks what is left of it (CPython 3.11
    takes a negative rest for none), so a thread that polls a flying write every 100 µs stands still some day.
    """

    def __init__(self) -> None:
        self._queue: queue.Queue[Order | None] = queue.Queue()
        self.is_closing = False
        """Whether the owner waits for the thread to end."""
        self.is_over = False
        """Whether `take` has returned everything that there will be."""

    def put(self, order: Order) -> None:
        """Add one at the end."""
        self._queue.put(order)

    def end(self) -> None:
        """Say that this was all."""
        self.is_closing = True
        self._queue.put(None)

    def take(self, timeout_seconds: float | None) -> Order | None:
        """Return the next one, or `None` when none came in time, and when it is over."""
        if self.is_over:
            return None
        try:
            order = self._queue.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        self.is_over = order is None
        return order


class Reports:
    """Completions on their way to the owner."""

    def __init__(self) -> None:
        self._completions: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self._bell = Bell()
        self._is_closed = False

    def put(self, completion: Completion) -> None:
        """Leave one and wake the owner."""
        self._completions.put(completion)
        self._bell.ring()

    def take(self) -> list[Completion]:
        """Return all, oldest first."""
        if not self._is_closed:
            self._bell.silence()
        return [self._completions.get_nowait() for _ in range(self._completions.qsize())]

    def fileno(self) -> int:
        """Return a descriptor that is readable while there may be some."""
        return self._bell.fileno()

    def close(self) -> None:
        """Close the descriptor; what is there can still be taken.

        Order: after every thread that puts has ended.
        """
        if not self._is_closed:
            self._is_closed = True
            self._bell.close()


Work: TypeAlias = Callable[[Orders, Reports], None]
"""Answers every `Write` among the orders, and returns soon after they are closing and over."""


class ThreadedWriter:
    """A `Writer` around the work of its thread.

    It is closed before the interpreter goes, if nobody has closed it: a thread that comes back from foreign code after
    that is ended inside of it, and takes the process along with SIGABRT.
    """

    def __init__(self, identity: bytes, work: Work, name: str) -> None:
        self._identity = identity
        self._orders = Orders()
        self._reports = Reports()
        self._thread = threading.Thread(target=work, args=(self._orders, self._reports), name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def identity(self) -> bytes:
        """What a memory needs to admit this writer."""
        return self._identity

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        """Begin one write."""
        assert not self._orders.is_closing, "posted to a closed writer"
        self._orders.put(Write(ticket, memory_key, spans))

    def poll(self) -> list[Completion]:
        """Return what has become known since the last call."""
        return self._reports.take()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._reports.fileno()

    def forget(self, memory_key: bytes) -> None:
        """Let go of a memory, after what was posted to it."""
        if not self._orders.is_closing:
            self._orders.put(Forget(memory_key))

    def close(self) -> None:
        """Join the thread, which answers what is open first."""
        if self._orders.is_closing:
            return
        atexit.unregister(self.close)
        self._orders.end()
        self._thread.join()
        self._reports.close()
