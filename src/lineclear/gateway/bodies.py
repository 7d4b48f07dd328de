"""Request bodies: read with bounded room, looked at in threads, let go as soon as they are understood.

| | at most |
|---|---|
| one body | `max_body_bytes`, then 413 |
| all large bodies that are held at once | `HELD_BODIES` times that, then 429 |
| large bodies looked at at once | one: what is made of a body can be many times as large |
| small bodies looked at at once | `NUM_THREADS` |

So a few large bodies neither exhaust the memory nor keep small ones waiting.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import Receive, Scope

from lineclear.gateway.errors import InvalidRequestError, OverloadedError
from lineclear.gateway.http import read_chunks

SMALL_BYTES = 1024 * 1024
"""A body up to here is small: the whole conversation of a coding agent, as a rule."""

HELD_BODIES = 4
"""Bodies of the largest size that there is room for."""

NUM_THREADS = 4
"""Tokenizing leaves the interpreter's lock, so a few bodies are prepared at once beside the event loop."""

T = TypeVar("T")


class Body:
    """The bytes of one body, and the room they take until they are released."""

    def __init__(self, bodies: "Bodies") -> None:
        self._bodies = bodies
        self._chunks: list[bytes] = []
        self.num_bytes = 0

    @property
    def is_large(self) -> bool:
        """Whether it takes room that others may want."""
        return self.num_bytes > SMALL_BYTES

    def append(self, chunk: bytes) -> None:
        """Add what arrived.

        Raises:
            OverloadedError: There is no room for it.
        """
        self._bodies.resize(self._room(), self._room(len(chunk)))
        self.num_bytes += len(chunk)
        self._chunks.append(chunk)

    def take(self) -> bytes:
        """The bytes, which are no longer kept here; the room is still taken."""
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    def release(self) -> None:
        """Give the room back; nothing happens when it was given back before."""
        self._chunks = []
        self._bodies.resize(self._room(), 0)
        self.num_bytes = 0

    def _room(self, num_more: int = 0) -> int:
        num_bytes = self.num_bytes + num_more
        return num_bytes if num_bytes > SMALL_BYTES else 0


class Bodies:
    """All bodies of one gateway.

    Args:
        max_body_bytes: the largest body that is accepted.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._num_held_bytes = 0
        self._small = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="prepare")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="prepare-large")

    @property
    def num_held_bytes(self) -> int:
        """The bytes of all large bodies that are held."""
        return self._num_held_bytes

    async def read(self, scope: Scope, receive: Receive) -> Body:
        """The whole body of a request; it must be looked at, or released.

        Raises:
            ApiError: It is too large or compressed, or there is no room for it.
            ClientDisconnectedError: The client left in the middle of it.
        """
        body = Body(self)
        try:
            async for chunk in read_chunks(scope, receive, self._max_body_bytes):
                body.append(chunk)
        except BaseException:
            body.release()
            raise
        return body

    async def look_at(self, body: Body, work: Callable[[bytes], T]) -> T:
        """Do some work on a body in a thread, and let the body go.

        Raises:
            InvalidRequestError: It is nested too deeply for the work.
        """
        threads = self._large if body.is_large else self._small
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, lambda: work(body.take()))
        except RecursionError:
            raise InvalidRequestError("the body is nested too deeply", None, "invalid_json") from None
        finally:
            body.release()

    def resize(self, old_bytes: int, new_bytes: int) -> None:
        """Take or give back room.

        Raises:
            OverloadedError: There is not so much.
        """
        num_bytes = self._num_held_bytes - old_bytes + new_bytes
        if new_bytes > old_bytes and num_bytes > HELD_BODIES * self._max_body_bytes:
            raise OverloadedError("too many large requests arrive at once; try again later", None, "server_overloaded")
        self._num_held_bytes = num_bytes

    def close(self) -> None:
        """End the threads; what waits for one is given up."""
        self._small.shutdown(wait=False, cancel_futures=True)
        self._large.shutdown(wait=False, cancel_futures=True)
