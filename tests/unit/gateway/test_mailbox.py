"""The mailbox hands over all there is, or nothing after the timeout."""

import asyncio

from lineclear.gateway.mailbox import Mailbox


def test_everything_is_taken_at_once_and_in_order() -> None:
    async def run() -> list[list[int]]:
        mailbox: Mailbox[int] = Mailbox()
        mailbox.put(1)
        mailbox.put(2)
        first = await mailbox.take_all()
        asyncio.get_running_loop().call_soon(mailbox.put, 3)
        return [first, await mailbox.take_all()]

    assert asyncio.run(run()) == [[1, 2], [3]]


def test_nothing_is_taken_when_nothing_comes() -> None:
    async def run() -> list[int]:
        mailbox: Mailbox[int] = Mailbox()
        return await mailbox.take_all(0.0)

    assert asyncio.run(run()) == []
