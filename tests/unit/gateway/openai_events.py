"""Streams of OpenAI's Responses API, held against the rules by which its clients read them."""

import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.unit.gateway.anthropic_events import parse_events

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

_PART_EVENTS = {
    "message": ("response.content_part.added", "response.output_text", "response.content_part.done"),
    "reasoning": (
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text",
        "response.reasoning_summary_part.done",
    ),
    "function_call": (None, "response.function_call_arguments", None),
    "custom_tool_call": (None, "response.custom_tool_call_input", None),
}
_ENDINGS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}


def response_of(text: str, *, by_sdk: bool = True) -> dict[str, Any]:
    """The response that a complete stream ends with; asserts the order of its events.

    `by_sdk` also holds each event against the types of OpenAI's own client, which takes a while.
    """
    events = parse_events(text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events if by_sdk else ():
        _EVENT.validate_python(event)
    first, *events = events
    assert first["type"] == "response.created"
    assert first["response"]["status"] == "in_progress"
    assert events[0]["type"] == "response.in_progress"
    events = [event for event in events if event["type"] != "response.in_progress"]
    *events, last = events
    response: dict[str, Any] = last["response"]
    assert response["status"] == _ENDINGS[last["type"]]
    assert response["id"] == first["response"]["id"]
    if last["type"] != "response.failed":
        assert _read_items(events) == response["output"]
    if by_sdk and last["type"] != "response.failed":
        Response.model_validate(response)
    return response


def _read_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    while events:
        added, *events = events
        assert (added["type"], added["output_index"]) == ("response.output_item.added", len(items))
        num_inside = next(idx for idx, event in enumerate(events) if event["type"] == "response.output_item.done")
        inside, done, events = events[:num_inside], events[num_inside], events[num_inside + 1 :]
        assert done["output_index"] == len(items)
        assert done["item"]["id"] == added["item"]["id"]
        assert all(event["item_id"] == added["item"]["id"] for event in inside)
        assert all(event["output_index"] == len(items) for event in inside)
        _check_inside(inside, added["item"], done["item"])
        items.append(done["item"])
    return items


def _check_inside(events: list[dict[str, Any]], added: dict[str, Any], done: dict[str, Any]) -> None:
    opening, stem, closing = _PART_EVENTS[added["type"]]
    if opening is not None:
        assert events.pop(0)["type"] == opening
        last = events.pop()
        assert last["type"] == closing
        [part] = done["content"] if added["type"] == "message" else done["summary"]
        assert last["part"] == part
    *deltas, ended = events
    assert ended["type"] == f"{stem}.done"
    assert all(delta["type"] == f"{stem}.delta" for delta in deltas)
    text = "".join(delta["delta"] for delta in deltas)
    assert text == text_of(done)
    assert text == next(ended[name] for name in ("text", "arguments", "input") if name in ended)


def text_of(item: dict[str, Any]) -> str:
    """What an item says."""
    match item["type"]:
        case "message":
            return "".join(part["text"] for part in item["content"])
        case "reasoning":
            return "".join(part["text"] for part in item["summary"])
        case "function_call":
            return item["arguments"]
        case _:
            return item["input"]


def parse_chat(text: str) -> list[dict[str, Any]]:
    """The chunks of a chat stream that ended with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
