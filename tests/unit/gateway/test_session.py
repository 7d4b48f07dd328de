"""Which session a request belongs to, as its client says it."""

from typing import Any

import pytest
from starlette.datastructures import Headers

from lineclear.base.ids import RequestId
from lineclear.gateway.codecs.chat import ChatCodec
from lineclear.gateway.codecs.completions import CompletionCodec
from lineclear.gateway.codecs.messages import MessagesCodec
from lineclear.gateway.codecs.responses import ResponsesCodec
from lineclear.gateway.generation import CallContext, Codec
from lineclear.gateway.served_model import TextAssets, serve_model
from lineclear.gateway.session import session_key, session_of_headers
from lineclear.gateway.sse import encode_json
from tests.unit.gateway.scripted_worker import model_facts

CHAT = {"messages": [{"role": "user", "content": "a"}]}
BODIES: list[tuple[Codec, dict[str, Any]]] = [
    (ChatCodec(), CHAT),
    (CompletionCodec(), {"prompt": "a"}),
    (MessagesCodec(), CHAT),
    (ResponsesCodec(), {"input": "a"}),
]


def key_of(assets: TextAssets, codec: Codec, body: dict[str, Any], from_headers: str = "") -> str:
    model = serve_model("tiny", assets, model_facts())
    context = CallContext(request_id=RequestId("r"), created=0, model=model, session_key=from_headers)
    return codec.prepare(encode_json(body), context).request.session_key


@pytest.mark.parametrize(("codec", "body"), BODIES)
def test_a_cache_key_is_a_session_and_headers_come_first(
    assets: TextAssets, codec: Codec, body: dict[str, Any]
) -> None:
    assert key_of(assets, codec, body) == ""
    key = key_of(assets, codec, body | {"prompt_cache_key": "secret-name"})
    assert key == session_key("secret-name")
    assert "secret" not in key
    assert key_of(assets, codec, body | {"prompt_cache_key": "b"}) != key
    assert key_of(assets, codec, body | {"prompt_cache_key": "b"}, "from-headers") == "from-headers"


@pytest.mark.parametrize(("codec", "body"), BODIES)
@pytest.mark.parametrize("value", [None, "", 7, {"a": 1}, ["x"]])
def test_a_cache_key_that_is_no_text_is_no_session(
    assets: TextAssets, codec: Codec, body: dict[str, Any], value: object
) -> None:
    assert key_of(assets, codec, body | {"prompt_cache_key": value}) == ""


@pytest.mark.parametrize("metadata", [None, {}, {"user_id": None}, {"user_id": 5}, "text", [1]])
def test_messages_without_a_user_are_no_session(assets: TextAssets, metadata: object) -> None:
    assert key_of(assets, MessagesCodec(), CHAT | {"metadata": metadata}) == ""


def test_the_user_of_a_message_is_its_session(assets: TextAssets) -> None:
    said = {"metadata": {"user_id": '{"session_id": "s"}'}}
    assert key_of(assets, MessagesCodec(), CHAT | said) == session_key('{"session_id": "s"}')


@pytest.mark.parametrize(
    "name",
    ["X-Claude-Code-Session-Id", "x-session-affinity", "x-session-id", "session-id", "session_id", "thread-id"],
)
def test_headers_that_agents_send_are_known(name: str) -> None:
    key = session_of_headers(Headers({name: "s"}))
    assert key
    assert key == session_of_headers(Headers({name: "s", "other": "x"}))
    assert key != session_of_headers(Headers({name: "t"}))


def test_subagents_are_sessions_of_their_own() -> None:
    session = {"x-claude-code-session-id": "s"}
    keys = {session_of_headers(Headers(session | {"x-claude-code-agent-id": agent})) for agent in ("", "a", "b")}
    assert len(keys) == 3


def test_an_operators_header_comes_first() -> None:
    headers = Headers({"x-session-id": "s", "x-tenant": "t"})
    assert session_of_headers(headers, ("x-tenant",)) == session_of_headers(Headers({"x-session-id": "t"}))
    assert session_of_headers(headers, ("x-absent",)) == session_of_headers(Headers({"x-session-id": "s"}))
    assert session_of_headers(Headers({})) == ""
