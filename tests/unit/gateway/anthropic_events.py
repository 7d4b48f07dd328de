"""Streams of Anthropic's API, held against the rules by which its clients read them."""

import json
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
_DELTA_OF = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}


def parse_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream; the name of each is its type."""
    events: list[dict[str, Any]] = []
    for frame in filter(None, text.strip("\n").split("\n\n")):
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def message_of(text: str, *, by_sdk: bool = True) -> dict[str, Any]:
    """The message that a complete stream adds up to; asserts the order of its events.

    `by_sdk` also holds each event against the types of Anthropic's own client, which takes a while.
    """
    start, *events = [event for event in parse_events(text) if event["type"] != "ping"]
    for event in (start, *events) if by_sdk else ():
        _EVENT.validate_python(event)
    assert start["type"] == "message_start"
    message: dict[str, Any] = start["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    if by_sdk:
        Message.model_validate(message)
    *blocks, delta, stop = events
    _add_blocks(message, blocks)
    assert (delta["type"], stop) == ("message_delta", {"type": "message_stop"})
    for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
        assert message["usage"][name] == delta["usage"][name]
    return message | delta["delta"] | {"usage": delta["usage"]}


def _add_blocks(message: dict[str, Any], events: list[dict[str, Any]]) -> None:
    arguments: str | None = None
    is_open = False
    for event in events:
        content = message["content"]
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(content)
                is_open, arguments = True, ""
                content.append(event["content_block"])
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(content) - 1
                arguments = _add_delta(content[-1], event["delta"], arguments)
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(content) - 1
                is_open = False
                _close_block(content[-1], arguments)
            case other:
                raise AssertionError(other)
    assert not is_open


def _add_delta(block: dict[str, Any], delta: dict[str, Any], arguments: str | None) -> str | None:
    kind = delta["type"]
    assert kind in _DELTA_OF[block["type"]]
    assert "signature" not in block or not block["signature"], "nothing follows a signature"
    if kind == "input_json_delta":
        return (arguments or "") + delta["partial_json"]
    field = kind.removesuffix("_delta")
    block[field] += delta[field]
    return arguments


def _close_block(block: dict[str, Any], arguments: str | None) -> None:
    if block["type"] != "tool_use":
        return
    assert block["input"] == {}
    try:
        block["input"] = json.loads(arguments or "{}")
    except json.JSONDecodeError:
        block["input"] = None  # the call was cut off: a whole answer leaves it out
