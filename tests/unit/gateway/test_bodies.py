"""Bodies have bounded room, large ones wait for each other and for nobody else."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from lineclear.gateway.bodies import HELD_BODIES, SMALL_BYTES, Bodies, Body
from lineclear.gateway.errors import BodyTooLargeError, InvalidRequestError, OverloadedError
from lineclear.gateway.http import ClientDisconnectedError

LARGE = SMALL_BYTES + 1


def receive_from(*chunks: bytes, ends: bool = True) -> Callable[[], Awaitable[Message]]:
    messages: list[Message] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request"} if ends else {"type": "http.disconnect"})

    async def receive() -> Message:
        return messages.pop(0)

    return receive


async def read(bodies: Bodies, *chunks: bytes, ends: bool = True) -> Body:
    return await bodies.read({"type": "http", "headers": []}, receive_from(*chunks, ends=ends))


def test_the_bytes_are_whole_and_the_room_comes_back() -> None:
    async def run() -> None:
        bodies = Bodies(LARGE)
        body = await read(bodies, b"a" * SMALL_BYTES, b"b")
        assert bodies.num_held_bytes == LARGE
        assert await bodies.look_at(body, bytes) == b"a" * SMALL_BYTES + b"b"
        assert bodies.num_held_bytes == 0
        body.release()
        assert bodies.num_held_bytes == 0

    asyncio.run(run())


def test_there_is_room_for_a_few_large_bodies_and_always_for_small_ones() -> None:
    async def run() -> None:
        bodies = Bodies(LARGE)
        held = [await read(bodies, b"x" * LARGE) for _ in range(HELD_BODIES)]
        with pytest.raises(OverloadedError):
            await read(bodies, b"x" * LARGE)
        small = await read(bodies, b"x")
        assert await bodies.look_at(small, len) == 1
        held[0].release()
        assert await bodies.look_at(await read(bodies, b"x" * LARGE), len) == LARGE
        for body in held:
            body.release()
        assert bodies.num_held_bytes == 0

    asyncio.run(run())


def test_a_body_that_is_refused_or_left_takes_no_room() -> None:
    async def run() -> None:
        bodies = Bodies(2 * LARGE)
        with pytest.raises(BodyTooLargeError):
            await read(bodies, b"x" * LARGE, b"x" * LARGE, b"x")
        with pytest.raises(ClientDisconnectedError):
            await read(bodies, b"x" * LARGE, ends=False)
        with pytest.raises(InvalidRequestError):
            await bodies.look_at(await read(bodies, b"x" * LARGE), too_deep)
        assert bodies.num_held_bytes == 0

    asyncio.run(run())


def too_deep(_: bytes) -> None:
    raise RecursionError


def test_large_bodies_wait_for_each_other_and_small_ones_for_none() -> None:
    async def run() -> None:
        bodies = Bodies(LARGE)
        may_end = threading.Event()
        running: list[int] = []

        def work(data: bytes) -> int:
            running.append(len(data))
            if len(data) > SMALL_BYTES:
                assert may_end.wait(20)
            return len(running)

        large = [asyncio.create_task(bodies.look_at(await read(bodies, b"x" * LARGE), work)) for _ in range(3)]
        for _ in range(3):
            await bodies.look_at(await read(bodies, b"x"), work)
        assert running.count(LARGE) <= 1
        may_end.set()
        await asyncio.gather(*large)
        assert running.count(LARGE) == 3

    asyncio.run(run())
