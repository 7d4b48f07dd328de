"""The life of a request that generates text, from its body's last byte to its one ending.

    1  the body is read                                 too large: 413
    2  the codec prepares it, in a thread                wrong: 4xx
    3  the dispatcher accepts it                         full: 429, no worker or draining: 503
       from here on the ledger has it, and headers may go out
    4  outputs become deltas, deltas become bytes        worker lost: again from 3, if nothing was delivered
    5  the ledger has its ending: COMPLETED, FAILED or DISCONNECTED

A client that leaves is noticed in every step after the first; what runs for it is cancelled.
"""

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from lineclear.base.ids import RequestId
from lineclear.gateway.accepted import ClientGone, Generation
from lineclear.gateway.answer import AnswerReader
from lineclear.gateway.bodies import Bodies, Body
from lineclear.gateway.dispatch import Dispatcher
from lineclear.gateway.envelopes import REQUEST_ID_KEY
from lineclear.gateway.errors import ApiError, OverloadedError, UnavailableError
from lineclear.gateway.generation import ApiCall, CallContext, Codec
from lineclear.gateway.http import ClientDisconnectedError, ClientWatch, EventStream, send_body
from lineclear.gateway.ledger import Ledger, Outcome
from lineclear.gateway.metrics import GatewayMetrics
from lineclear.gateway.served_model import ServedModel, TextAssets, serve_model
from lineclear.gateway.session import session_of_headers
from lineclear.gateway.usage import Usage

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 5.0
"""Silence after which a stream says that it is alive: proxies give up after 30 s and more, clients after 300."""

GUARD_HEADER = "x-lineclear-guard"
"""Says of an answer in one piece that the guard judged it: `observed`, or `model_own`."""

MAX_PREPARING = 256
"""Bodies that are prepared or wait for it; each may be large."""


@dataclass(frozen=True)
class Services:
    """What endpoints work with."""

    dispatcher: Dispatcher
    ledger: Ledger
    metrics: GatewayMetrics
    assets: TextAssets
    bodies: Bodies
    served_model_name: str | None
    session_headers: tuple[str, ...] = ()
    num_holdback_tokens: int = 0
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS

    def model(self) -> ServedModel:
        """The model as the last worker described it.

        Raises:
            UnavailableError: No worker has connected yet.
        """
        facts = self.dispatcher.facts
        if facts is None:
            raise UnavailableError("no worker is ready yet; try again later", None, "no_worker")
        return serve_model(self.served_model_name or facts.name, self.assets, facts)


class GenerationEndpoint:
    """An ASGI endpoint that serves one API.

    Args:
        codec: the API.
        services: what it works with.
    """

    def __init__(self, codec: Codec, services: Services) -> None:
        self._codec = codec
        self._services = services
        self._num_preparing = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            ApiError: The request is refused, or failed before anything was sent.
        """
        body = await self._services.bodies.read(scope, receive)
        try:
            await self._exchange(body, scope, receive, send)
        finally:
            body.release()

    async def _exchange(self, body: Body, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(self._codec.api, self._services, scope[REQUEST_ID_KEY])
        with self._services.metrics.inflight.labels(self._codec.api).track_inprogress():
            async with ClientWatch(receive) as watch:
                try:
                    await self._serve(body, exchange, watch, scope, send)
                except ApiError as error:
                    exchange.record_error(error)
                    raise
                except ClientDisconnectedError:
                    exchange.record_disconnect()
                    raise

    async def _serve(self, body: Body, exchange: "_Exchange", watch: ClientWatch, scope: Scope, send: Send) -> None:
        call = await self._prepare(body, exchange, scope)
        watch.raise_if_gone()
        generation = self._services.dispatcher.submit(call.request)
        watch.call_when_gone(lambda: generation.events.put(ClientGone()))
        await exchange.answer(call, generation, send)

    async def _prepare(self, body: Body, exchange: "_Exchange", scope: Scope) -> ApiCall:
        self._services.dispatcher.refuse_unavailable()
        if self._num_preparing >= MAX_PREPARING:
            raise OverloadedError("too many requests arrive at once; try again later", None, "server_overloaded")
        context = CallContext(
            request_id=exchange.request_id,
            created=int(time.time()),
            model=self._services.model(),
            session_key=session_of_headers(Headers(scope=scope), self._services.session_headers),
        )
        self._num_preparing += 1
        try:
            with self._services.metrics.prepare_seconds.time():
                return await self._services.bodies.look_at(body, lambda data: self._read(data, context))
        finally:
            self._num_preparing -= 1

    def _read(self, body: bytes, context: CallContext) -> ApiCall:
        """In a thread, so that what takes milliseconds holds nobody up."""
        call = self._codec.prepare(body, context)
        self._services.dispatcher.read_ahead(call.request)
        return call


class _Exchange:
    """One request and what is measured of it."""

    def __init__(self, api: str, services: Services, sent_id: str) -> None:
        self._sent_id = sent_id
        self.request_id = RequestId(uuid.uuid4().hex)
        self._api = api
        self._services = services
        self._metrics = services.metrics
        self._now = asyncio.get_running_loop().time
        self._started = self._now()
        self._last_output: float | None = None
        self._ttft_seconds: float | None = None
        self._is_stream = False
        self._phase = "prepare"

    async def answer(self, call: ApiCall, generation: Generation, send: Send) -> None:
        """Answer an accepted request; its ending is in the ledger when this returns or raises."""
        self._is_stream = call.is_stream
        self._phase = "queue"
        services = self._services
        vocabulary = services.assets.tokenization.vocabulary
        num_holdback_tokens = services.num_holdback_tokens if call.is_stream else 0
        reader = AnswerReader(generation, services.dispatcher, vocabulary, self._on_tokens, num_holdback_tokens)
        services.ledger.open(self.request_id)
        outcome = Outcome.FAILED
        try:
            if call.is_stream:
                has_completed = await self._stream(call, reader, EventStream(send))
            else:
                has_completed = await self._whole(call, reader, send)
            if has_completed:
                outcome = Outcome.COMPLETED
                self._record_answer(reader)
        except ClientDisconnectedError:
            outcome = Outcome.DISCONNECTED
            raise
        finally:
            services.dispatcher.close(generation)
            services.ledger.end(self.request_id, outcome)
            self._log(outcome, reader.usage())

    async def _whole(self, call: ApiCall, reader: AnswerReader, send: Send) -> bool:
        while not reader.is_complete:
            await reader.take(None)
        words = {choice.mark.judged for choice in reader.choices if choice.mark is not None}
        headers = {GUARD_HEADER: ",".join(sorted(words))} if words else {}
        await send_body(send, call.reply.whole(reader.choices, reader.usage()), headers=headers)
        return True

    async def _stream(self, call: ApiCall, reader: AnswerReader, stream: EventStream) -> bool:
        """Returns whether the stream is complete; if not, whoever called us leaves it without an end."""
        try:
            await stream.begin(call.reply.begin())
            await self._stream_deltas(call, reader, stream)
            await stream.finish(call.reply.end(reader.choices, reader.usage()))
        except ApiError as error:
            self.record_error(error)
            words = call.reply.failure(error, is_ready=self._services.dispatcher.is_ready)
            await (stream.finish if words.is_ending else stream.write)(words.data)
            return False
        return True

    async def _stream_deltas(self, call: ApiCall, reader: AnswerReader, stream: EventStream) -> None:
        last_write = self._now()
        while not reader.is_complete:
            deltas = await reader.take(max(0.0, last_write + self._services.keep_alive_seconds - self._now()))
            data = b"".join(call.reply.delta(choice_idx, delta) for choice_idx, delta in deltas)
            if data:
                reader.mark_sent()
            elif self._now() - last_write >= self._services.keep_alive_seconds:
                data = call.reply.keep_alive()
                self._metrics.keep_alives.inc()
            if data:
                await stream.write(data)
                last_write = self._now()

    def _log(self, outcome: Outcome, usage: Usage) -> None:
        """One line a request: who, how long, how much, and nothing of what was said."""
        logger.info(
            "request %s %s api=%s stream=%d phase=%s prompt=%d cached=%d output=%d ttft_ms=%d e2e_ms=%d sent_id=%s",
            self.request_id,
            outcome.value,
            self._api,
            self._is_stream,
            self._phase,
            usage.num_prompt_tokens,
            usage.num_cached_tokens,
            usage.num_completion_tokens,
            1000 * (self._ttft_seconds or 0),
            1000 * self._elapsed(),
            self._sent_id,
        )

    def _on_tokens(self, num_tokens: int) -> None:
        now = self._now()
        if self._last_output is None:
            self._ttft_seconds = now - self._started
            self._metrics.time_to_first_token.observe(self._ttft_seconds)
            self._phase = "decode"
        else:
            self._metrics.inter_token_latency.observe((now - self._last_output) / num_tokens)
        self._last_output = now

    def _record_answer(self, reader: AnswerReader) -> None:
        self._metrics.count_usage(reader.usage())
        for parser in reader.tool_calls:
            self._metrics.tool_calls.labels("complete").inc(parser.num_complete)
            self._metrics.tool_calls.labels("cut").inc(parser.num_started - parser.num_complete)
            self._metrics.tool_calls.labels("refused").inc(parser.num_refused)
            self._metrics.tool_calls.labels("repaired").inc(parser.num_repaired)
        self._record("200", "")

    def record_error(self, error: ApiError) -> None:
        """Count a request that ends with an error."""
        if isinstance(error, OverloadedError | UnavailableError):
            self._metrics.rejections.labels(error.code or "").inc()
        self._record(str(error.status), error.code or error.error_type)

    def record_disconnect(self) -> None:
        """Count a request whose client left."""
        self._metrics.disconnects.labels(self._phase).inc()
        self._record("499", "client_disconnected")

    def _record(self, status: str, error_type: str) -> None:
        stream = "true" if self._is_stream else "false"
        self._metrics.requests.labels(self._api, stream, status, error_type).inc()
        self._metrics.request_duration.observe(self._elapsed())

    def _elapsed(self) -> float:
        return self._now() - self._started
