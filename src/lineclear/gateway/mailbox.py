"""What happens to one request, in order, from many senders to its one reader."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """An unbounded queue that hands over everything it has at once: a reader that is late catches up in one go."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._has_items = asyncio.Event()

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        self._has_items.set()

    async def take_all(self, timeout_seconds: float | None = None) -> list[T]:
        """All items there are, at least one; none if the timeout passed first."""
        if not self._items:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._has_items.wait()
            except TimeoutError:
                return []
        items = list(self._items)
        self._items.clear()
        self._has_items.clear()
        return items
