"""Bodies that make no sense are refused in words that name the field."""

import json
from typing import Any

import pytest

from lineclear.gateway.codecs import body as body_module
from lineclear.gateway.codecs.body import MAX_BIASES, GenerationBody, decode_body
from lineclear.gateway.codecs.chat import MAX_MESSAGES, MAX_TOOLS, ChatBody, _read_max_tokens
from lineclear.gateway.codecs.chat_messages import MAX_PIECES
from lineclear.gateway.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"temperature": "hot"}', "temperature", 'temperature: got "hot", allowed: number | null'),
        (b'{"logit_bias": {"x": 1}}', "logit_bias", "logit_bias: "),
        (b'{"logit_bias": {"1": "x"}}', "logit_bias", "logit_bias: "),
        (b'{"stop": ["a", ""]}', "stop[1]", 'stop[1]: got "", allowed: string of length >= 1'),
        (b'{"n": 1.5}', "n", "n: got 1.5, allowed: integer | null"),
        (b'{"top_p": true}', "top_p", "top_p: got true, allowed: number | null"),
        (b'{"seed": "' + b"1" * 500 + b'"}', "seed", 'seed: got "' + "1" * 79 + "…, allowed: integer | null"),
        (b'{"seed": [1]}', "seed", "seed: got array, allowed: integer | null"),
        (b'{"stop": ""}', "stop", 'stop: got "", allowed: string of length >= 1'),
        (
            b'{"stop": ["a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"]}',
            "stop",
            "stop: got a longer one, allowed: array of length <= 16",
        ),
        (b'{"stream_options": {"include_usage": 1}}', "stream_options.include_usage", "stream_options.include_usage: "),
        (b"[]", None, "got array, allowed: object"),
        (b'{"temperature": "hot", !', "temperature", "temperature: got string, allowed: number | null"),
    ],
)
def test_wrong_types(body: bytes, param: str | None, message: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        decode_body(body, GenerationBody)
    assert (raised.value.param, raised.value.code) == (param, "invalid_type")
    assert raised.value.message.startswith(message)


@pytest.mark.parametrize("value", [b"[]", b"{}", b"0", b'""'])
def test_a_body_has_a_largest_number_of_values(monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    monkeypatch.setattr(body_module, "MAX_SEPARATORS", 100)
    decode_body(b'{"other": [' + b",".join([value] * 40) + b"]}", GenerationBody)
    with pytest.raises(InvalidRequestError) as raised:
        decode_body(b'{"other": [' + b",".join([value] * 200) + b"]}", GenerationBody)
    assert raised.value.param == "body"


ENTRY = {"role": "user", "content": ""}
CALL = {"function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [ENTRY] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [], "tools": [{}] * (MAX_TOOLS + 1)}, "tools"),
        ({"messages": [ENTRY | {"content": [""] * (MAX_PIECES + 1)}]}, "messages[0].content"),
        ({"messages": [ENTRY | {"tool_calls": [CALL] * (MAX_PIECES + 1)}]}, "messages[0].tool_calls"),
        ({"messages": [], "logit_bias": dict.fromkeys(range(MAX_BIASES + 1), 1)}, "logit_bias"),
    ],
    ids=["messages", "tools", "content", "tool_calls", "logit_bias"],
)
def test_lists_have_a_longest_length(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        decode_body(json.dumps(fields).encode(), ChatBody)
    assert raised.value.param == param
    assert "got a longer one" in raised.value.message


def test_missing_fields() -> None:
    with pytest.raises(InvalidRequestError) as raised:
        decode_body(b'{"messages": [{"content": "x"}]}', ChatBody)
    assert (raised.value.param, raised.value.message) == ("messages[0].role", "messages[0].role: is missing")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"a": NaN}', b'{"stop": "\\ud800"}'])
def test_no_json(body: bytes) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        decode_body(body, GenerationBody)
    assert raised.value.code == "invalid_json"


def test_half_a_surrogate_pair_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        decode_body(b'{"stop": "a\\ud800b"}', GenerationBody)


def test_null_is_nothing() -> None:
    names = [name for name in GenerationBody.__struct_fields__ if name != "lineclear"]
    body = "{" + ",".join(f'"{name}": null' for name in [*names, "lineclear"]) + "}"
    assert decode_body(body.encode(), GenerationBody) == GenerationBody()


def test_the_newer_name_of_the_maximum_wins_and_is_named_in_errors() -> None:
    both = decode_body(b'{"messages": [], "max_tokens": 3, "max_completion_tokens": 5}', ChatBody)
    assert _read_max_tokens(both) == 5
    assert _read_max_tokens(decode_body(b'{"messages": [], "max_tokens": 3}', ChatBody)) == 3
    with pytest.raises(InvalidRequestError) as raised:
        _read_max_tokens(decode_body(b'{"messages": [], "max_completion_tokens": 0}', ChatBody))
    assert raised.value.param == "max_completion_tokens"
