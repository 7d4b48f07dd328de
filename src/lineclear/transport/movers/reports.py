"""Where a writer's thread leaves completions, and its owner's loop finds them."""

from collections import deque

from lineclear.transport.movers.bell import Bell
from lineclear.transport.movers.mover import Completion


class Reports:
    """Completions on their way from any thread to the owner of a writer."""

    def __init__(self) -> None:
        self._completions: deque[Completion] = deque()
        self._bell = Bell()
        self._is_closed = False

    def put(self, completion: Completion) -> None:
        """Leave one and wake the owner."""
        self._completions.append(completion)
        self._bell.ring()

    def take(self) -> list[Completion]:
        """Return all, oldest first."""
        if not self._is_closed:
            self._bell.silence()
        taken: list[Completion] = []
        while self._completions:
            taken.append(self._completions.popleft())
        return taken

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
