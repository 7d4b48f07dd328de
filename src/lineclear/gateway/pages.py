"""The endpoints that answer from what is at hand: models, tokens, health, metrics."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from lineclear.gateway.codecs.body import decode_body
from lineclear.gateway.codecs.chat import ChatBody, read_conversation
from lineclear.gateway.codecs.messages import count_tokens
from lineclear.gateway.codecs.model_name import check_model_name
from lineclear.gateway.codecs.prompt import render_prompt
from lineclear.gateway.codecs.sampling import refuse_hopeless
from lineclear.gateway.codecs.unserved import TOKENIZE_CHAT, TOKENIZE_TEXT, UnservedFields
from lineclear.gateway.detokenize import detokenize
from lineclear.gateway.errors import NotFoundError, UnavailableError, refuse
from lineclear.gateway.http import send_body
from lineclear.gateway.metrics import CONTENT_TYPE
from lineclear.gateway.served_model import ServedModel
from lineclear.gateway.serving import Services
from lineclear.gateway.sse import encode_json
from lineclear.gateway.worker_table import Worker

STATISTICS_TIMEOUT_SECONDS = 1.0
"""How long a scrape waits for the workers: a worker answers between two steps."""


CHECK_TIMEOUT_SECONDS = 30.0
"""A check walks through the whole pool, between two steps."""


MAX_SPELLED_SEQUENCES = 16
"""Tokens that are spelled at once, in longest sequences: more than `/tokenize` ever answers, and no more than that."""


_UNSERVED_WITH_TEXT = UnservedFields(TOKENIZE_TEXT)
_UNSERVED_WITH_CHAT = UnservedFields(TOKENIZE_CHAT)


class TokenizeBody(msgspec.Struct):
    """A text to tokenize; a conversation is read as a `ChatBody`."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(msgspec.Struct):
    """Tokens to spell."""

    tokens: list[int]
    model: str | None = None


class _Conversation(msgspec.Struct):
    """Tells a conversation from a text."""

    messages: Any = msgspec.UNSET


class Pages:
    """The endpoints.

    Args:
        services: what they work with.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._started = int(time.time())

    async def health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """The process is alive."""
        await send_body(send, encode_json({"status": "alive"}))

    async def ready(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Whether a request would be accepted, room provided."""
        self._services.dispatcher.refuse_unavailable()
        await send_body(send, encode_json({"status": "ready"}))

    async def metrics(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """The figures of gateway and workers, as of now."""
        await self._services.dispatcher.questions.query_statistics(STATISTICS_TIMEOUT_SECONDS)
        await send_body(send, self._services.metrics.render(), content_type=CONTENT_TYPE)

    async def invariants(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Whether the promises about blocks, sequences and requests hold at this moment, worker by worker.

        Raises:
            InvariantError: A request has no ending, or two.
        """
        self._services.ledger.check()
        has_answers = await self._services.dispatcher.questions.check_invariants(CHECK_TIMEOUT_SECONDS)
        by_name = sorted(self._services.dispatcher.workers, key=lambda worker: worker.hello.worker_id)
        workers = [_checked(worker) for worker in by_name]
        is_ok = has_answers and all(worker["ok"] for worker in workers)
        await send_body(send, encode_json({"ok": is_ok, "workers": workers}), status=200 if is_ok else 500)

    async def recent_verdicts(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """The guard's last verdicts, the newest first, and what became of them."""
        await send_body(send, encode_json({"verdicts": list(self._services.dispatcher.guard_book.recent())}))

    async def models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """The served models, in a shape that clients of OpenAI and of Anthropic both read."""
        try:
            models = [self._model_object(self._services.model())]
        except UnavailableError:
            models = []
        listing: dict[str, Any] = {"object": "list", "data": models, "has_more": False}
        listing["first_id"] = listing["last_id"] = models[0]["id"] if models else None
        await send_body(send, encode_json(listing))

    async def one_model(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """One model.

        Raises:
            NotFoundError: It is not served.
        """
        model = self._services.model()
        name = scope["path_params"]["model"]
        if name != model.name:
            raise NotFoundError(f"model: got {name!r}, served: {model.name}", "model", "model_not_found")
        await send_body(send, encode_json(self._model_object(model)))

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The tokens of a text, or of a conversation as the chat API would render it."""
        await send_body(send, await self._answer(scope, receive, _tokenize))

    async def count_tokens(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The tokens of the prompt that a body of `/v1/messages` makes; no worker is asked, and no queue stood in."""
        await send_body(send, await self._answer(scope, receive, _count_tokens))

    async def detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The text of tokens."""
        await send_body(send, await self._answer(scope, receive, _detokenize))

    async def _answer(self, scope: Scope, receive: Receive, work: Callable[[bytes, ServedModel], bytes]) -> bytes:
        model = self._services.model()
        body = await self._services.bodies.read(scope, receive)
        return await self._services.bodies.look_at(body, lambda data: work(data, model))

    def _model_object(self, model: ServedModel) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "type": "model",
            "display_name": model.name,
            "created": self._started,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
            "owned_by": "lineclear",
            "max_model_len": model.max_sequence_len,
            "lifecycle": "active",
            "max_input_tokens": model.max_prompt_len,
            "max_tokens": model.max_sequence_len,
        }


def _checked(worker: Worker) -> dict[str, Any]:
    checked = worker.invariants
    return {
        "worker": worker.hello.worker_id,
        "life": worker.hello.life,
        "ok": checked is not None and checked.ok,
        "detail": "no answer" if checked is None else checked.detail,
    }


def _tokenize(body: bytes, model: ServedModel) -> bytes:
    if decode_body(body, _Conversation).messages is not msgspec.UNSET:
        chat = decode_body(body, ChatBody)
        check_model_name(chat.model, model)
        _UNSERVED_WITH_CHAT.refuse_in(body)
        _, token_ids = render_prompt(read_conversation(chat), model)
    else:
        text = decode_body(body, TokenizeBody)
        check_model_name(text.model, model)
        _UNSERVED_WITH_TEXT.refuse_in(body)
        add_special_tokens = text.add_special_tokens is not False
        refuse_hopeless(text.prompt, model, "prompt")
        token_ids = model.assets.tokenization.encode_prompt(text.prompt, add_special_tokens=add_special_tokens)
    return encode_json({"count": len(token_ids), "max_model_len": model.max_sequence_len, "tokens": token_ids})


def _count_tokens(body: bytes, model: ServedModel) -> bytes:
    return encode_json({"input_tokens": count_tokens(body, model)})


def _detokenize(body: bytes, model: ServedModel) -> bytes:
    request = decode_body(body, DetokenizeBody)
    check_model_name(request.model, model)
    max_tokens = MAX_SPELLED_SEQUENCES * model.max_sequence_len
    if len(request.tokens) > max_tokens:
        raise refuse("tokens", f"{len(request.tokens)} tokens", f"at most {max_tokens}")
    for token_id in request.tokens:
        if not 0 <= token_id < model.vocab_size:
            raise refuse("tokens", token_id, f"token ids from 0 to {model.vocab_size - 1}")
    return encode_json({"prompt": detokenize(model.assets.tokenization.vocabulary, request.tokens)})
