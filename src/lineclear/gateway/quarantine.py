"""Blocks in quarantine, which wait for the proof that a lost process can write no more: what an operator sees and says.

| | |
|---|---|
| `GET /quarantine` | whom the blocks of each decode worker wait for |
| `POST /quarantine/release` | the operator vouches for one life; its blocks are used again |

The word of an operator stands for a proof, and wrong answers follow if it is wrong. So it names the life, says what it
vouches for, and comes from somebody who may give it: with a key, or, where there are no keys, from this machine.
"""

import ipaddress
import logging
from typing import Literal

import msgspec
from starlette.types import Receive, Scope, Send

from lineclear.gateway.codecs.body import decode_body
from lineclear.gateway.errors import ForbiddenError, NotFoundError, UnavailableError
from lineclear.gateway.http import send_body
from lineclear.gateway.serving import Services
from lineclear.gateway.sse import encode_json
from lineclear.gateway.worker_table import Worker
from lineclear.protocol import wire

ANSWER_TIMEOUT_SECONDS = 5.0
"""A worker answers between two steps."""

logger = logging.getLogger(__name__)


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """One life, and the word."""

    worker: str
    """The decode worker whose blocks are meant."""
    prefill: str
    """The prefill instance that was lost."""
    life: wire.Count
    can_write_no_more: Literal["I am sure"]
    rank: wire.Count = 0


class QuarantinePages:
    """The two endpoints.

    Args:
        services: what they work with.
        has_api_keys: whether everybody who comes here has shown a key.
    """

    def __init__(self, services: Services, *, has_api_keys: bool) -> None:
        self._services = services
        self._has_api_keys = has_api_keys

    async def show(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """All that is in quarantine now; of workers that do not answer, as they last said."""
        silent = await self._services.dispatcher.questions.query_decode_statistics(ANSWER_TIMEOUT_SECONDS)
        by_name = sorted(self._services.dispatcher.workers, key=lambda worker: worker.hello.worker_id)
        waiting = [_shown(worker, writer) for worker in by_name for writer in _quarantine_of(worker)]
        no_answer = sorted(worker.hello.worker_id for worker in silent)
        await send_body(send, encode_json({"quarantine": waiting, "no_answer": no_answer}))

    async def release(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take an operator's word for one life.

        Raises:
            ForbiddenError: It comes from elsewhere, and nobody has keys.
            InvalidRequestError: The body is not what it must be.
            NotFoundError: There is no such worker, or nothing there waits for that life.
            UnavailableError: The worker does not answer.
        """
        if not self._has_api_keys and not _is_local(scope):
            raise ForbiddenError(
                "/quarantine/release: without --api-key it is open to this machine alone", None, "forbidden"
            )
        body = await self._services.bodies.read(scope, receive)
        asked = await self._services.bodies.look_at(body, lambda data: decode_body(data, ReleaseBody))
        worker = self._find(asked.worker)
        release = wire.ReleaseQuarantine(worker_id=asked.prefill, rank=asked.rank, life=asked.life)
        questions = self._services.dispatcher.questions
        num_blocks = await questions.release_quarantine(worker, release, ANSWER_TIMEOUT_SECONDS)
        if num_blocks is None:
            raise UnavailableError("the worker does not answer; try again", None, "worker_busy")
        if not num_blocks:
            message = f"no block of {asked.worker} waits for rank {asked.rank}, life {asked.life} of {asked.prefill}"
            raise NotFoundError(message, None, "not_in_quarantine")
        logger.warning(
            "by an operator's word %d blocks of %s wait no more for %s, life %d",
            num_blocks,
            worker.hello.worker_id,
            *(asked.prefill, asked.life),
        )
        await send_body(send, encode_json({"released_blocks": num_blocks}))

    def _find(self, worker_id: str) -> Worker:
        workers = {worker.hello.worker_id: worker for worker in self._services.dispatcher.workers}
        if worker_id not in workers:
            allowed = ", ".join(sorted(workers)) or "none is connected"
            raise NotFoundError(f"worker: got {worker_id!r}, allowed: {allowed}", "worker", "worker_not_found")
        return workers[worker_id]


def _quarantine_of(worker: Worker) -> list[wire.QuarantinedWriter]:
    if worker.statistics is None or worker.statistics.handoffs is None:
        return []
    return worker.statistics.handoffs.quarantine


def _shown(worker: Worker, writer: wire.QuarantinedWriter) -> dict[str, object]:
    return {
        "worker": worker.hello.worker_id,
        "prefill": writer.worker_id,
        "rank": writer.rank,
        "life": writer.life,
        "handoffs": writer.num_handoffs,
        "blocks": writer.num_blocks,
        "seconds": round(writer.seconds, 1),
    }


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
