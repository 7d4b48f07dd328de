"""Questions to workers, and the wait for their answers."""

import asyncio
from collections.abc import Callable, Collection

from lineclear.gateway.worker_table import Worker, WorkerTable
from lineclear.protocol import wire
from lineclear.protocol.roles import Role
from lineclear.transport.worker_links import LinkId, WorkerLinks

OWNERS = frozenset({Role.DECODE, Role.COLOCATED})
"""The roles of workers that own requests."""


class WorkerQuestions:
    """Asks the workers of a table over their links.

    `announce_change` must be called after every event that may have brought an answer, or taken away a worker.
    """

    def __init__(self, table: WorkerTable[LinkId], links: WorkerLinks) -> None:
        self._table = table
        self._links = links
        self._change: asyncio.Future[None] | None = None

    def announce_change(self) -> None:
        """Wake whoever waits for an answer."""
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    async def drain(self, timeout_seconds: float) -> bool:
        """Let the workers finish what they have, cancelled sequences included; returns whether all did in time."""
        for worker in self._table.workers.values():
            worker.is_draining = True
        return await self._ask_all(wire.Drain(), lambda worker: worker.is_drained, timeout_seconds)

    async def query_statistics(self, timeout_seconds: float) -> bool:
        """Bring every worker's figures up to date; returns whether all answered in time."""
        return await self._ask_all(wire.QueryStatistics(), lambda worker: worker.statistics, timeout_seconds)

    async def query_decode_statistics(self, timeout_seconds: float) -> list[Worker]:
        """Bring the figures of those that own requests up to date; returns those that do not answer in time."""
        asked = {link_id: worker for link_id, worker in self._table.workers.items() if worker.hello.role in OWNERS}
        before = {link_id: worker.statistics for link_id, worker in asked.items()}
        await self._ask(list(asked), wire.QueryStatistics(), lambda worker: worker.statistics, timeout_seconds)
        return [worker for link_id, worker in asked.items() if worker.statistics is before[link_id]]

    async def check_invariants(self, timeout_seconds: float) -> bool:
        """Let every worker check pool, tree and scheduler; returns whether all answered in time."""
        return await self._ask_all(wire.CheckInvariants(), lambda worker: worker.invariants, timeout_seconds)

    async def release_quarantine(
        self, worker: Worker, release: wire.ReleaseQuarantine, timeout_seconds: float
    ) -> int | None:
        """Pass an operator's word on to one worker; returns the blocks that it frees, None without an answer."""
        asked = [link_id for link_id, each in self._table.workers.items() if each is worker]
        worker.released = None
        await self._ask(asked, release, lambda each: each.released, timeout_seconds)
        return None if worker.released is None else worker.released.num_blocks

    async def _ask_all(
        self, question: wire.ToWorker, answer: Callable[[Worker], object], timeout_seconds: float
    ) -> bool:
        return await self._ask(list(self._table.workers), question, answer, timeout_seconds)

    async def _ask(
        self,
        asked: Collection[LinkId],
        question: wire.ToWorker,
        answer: Callable[[Worker], object],
        timeout_seconds: float,
    ) -> bool:
        """Ask these workers, and wait until each has a new answer or is lost; returns whether it was in time."""
        before = {link_id: answer(self._table.workers[link_id]) for link_id in asked}
        for link_id in before:
            self._links.send(link_id, question)

        def has_answered(link_id: LinkId) -> bool:
            worker = self._table.workers.get(link_id)
            return worker is None or answer(worker) is not before[link_id]

        return await self._wait_until(lambda: all(map(has_answered, before)), timeout_seconds)

    async def _wait_until(self, is_met: Callable[[], bool], timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                while not is_met():
                    if self._change is None:
                        self._change = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._change)
        except TimeoutError:
            return False
        return True
