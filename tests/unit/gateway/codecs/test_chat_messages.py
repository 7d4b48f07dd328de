"""What coding agents send, and what the template is shown of it."""

from typing import Any

import msgspec
import pytest

from lineclear.gateway.codecs.chat_messages import MessageBody, read_messages, read_tools
from lineclear.gateway.conversation import Message, PastToolCall
from lineclear.gateway.errors import InvalidRequestError


def read(*bodies: dict[str, Any]) -> tuple[Message, ...]:
    return read_messages(msgspec.convert(list(bodies), list[MessageBody]))


def call(arguments: object) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"role": "developer", "content": "be brief"}, Message("system", "be brief")),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}, Message("user", "ab")),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}]}, Message("user", "a")),
        ({"role": "user", "content": []}, Message("user", "")),
        ({"role": "assistant"}, Message("assistant", "")),
        ({"role": "assistant", "content": None}, Message("assistant", "")),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, Message("assistant", "no")),
        ({"role": "assistant", "content": "a", "reasoning_content": "r "}, Message("assistant", "a", "r ")),
        ({"role": "assistant", "content": "a", "reasoning": "r"}, Message("assistant", "a", "r")),
        ({"role": "assistant", "content": "a", "reasoning": {"effort": 1}}, Message("assistant", "a")),
        ({"role": "assistant", "content": "<think>r</think>a"}, Message("assistant", "a", "r")),
        ({"role": "assistant", "content": "see <think>r</think>"}, Message("assistant", "see <think>r</think>")),
        ({"role": "user", "content": "<think>r</think>a"}, Message("user", "<think>r</think>a")),
        ({"role": "tool", "content": None, "tool_call_id": "c1"}, Message("tool", "", tool_call_id="c1")),
        ({"role": "tool", "content": [{"type": "text", "text": "x"}]}, Message("tool", "x")),
        (
            {"role": "tool", "content": [{"type": "image_url"}, "x"]},
            Message("tool", "[image_url: this model reads text only]x"),
        ),
        ({"role": "function", "name": "f", "content": "x"}, Message("tool", "x", name="f")),
        ({"role": "user", "content": "x", "tool_calls": [call("{}")]}, Message("user", "x")),
    ],
)  # fmt: skip
def test_messages_are_understood(body: dict[str, Any], message: Message) -> None:
    assert read(body) == (message,)


@pytest.mark.parametrize(
    ("arguments", "understood"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        ("  ", {}),
        (None, {}),
        ("null", {}),
        ('{"a": ', {"arguments": '{"a": '}),
        ('"x"', {"arguments": "x"}),
        ("[1]", {"arguments": [1]}),
        ([1], {"arguments": [1]}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
    ],
)
def test_broken_arguments_do_not_end_a_conversation(arguments: object, understood: object) -> None:
    [message] = read({"role": "assistant", "content": None, "tool_calls": [call(arguments)]})
    assert message.tool_calls == (PastToolCall("c1", "f", understood),)


def test_tool_calls_without_results_and_results_without_calls_are_kept_in_order() -> None:
    messages = read(
        {"role": "assistant", "content": "", "tool_calls": [call("{}"), call("{}")]},
        {"role": "user", "content": "never mind"},
        {"role": "tool", "content": "late", "tool_call_id": "nobody"},
        {"role": "tool", "content": "later", "tool_call_id": "nobody"},
    )
    assert [message.role for message in messages] == ["assistant", "user", "tool", "tool"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"role": "wizard", "content": "x"}, r"messages\[0\].role"),
        ({"role": "system", "content": None}, r"messages\[0\].content"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, r"messages\[0\].content\[0\].type"),
        ({"role": "tool", "content": [{"type": "text"}]}, r"messages\[0\].content\[0\].text"),
        ({"role": "user", "content": ["a", {"type": "text"}]}, r"messages\[0\].content\[1\].text"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        read(body)


def test_tools_are_rendered_as_they_were_sent() -> None:
    body = {"type": "function", "function": {"name": "f", "description": "d", "strict": True}, "extra": [1]}
    [tool] = read_tools([body])
    assert (tool.name, tool.parameters, tool.rendered) == ("f", {}, body)


@pytest.mark.parametrize(
    "body",
    [
        {"type": "web_search"},
        {"type": "function"},
        {"function": {"name": "f"}},
        {"type": "function", "function": {"name": " f"}},
        {"type": "function", "function": {"name": "f" * 257}},
        {"type": "function", "function": {"name": None}},
        {"type": "function", "function": {"name": "f", "parameters": []}},
    ],
)
def test_tools_that_cannot_be_called_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"tools\[0\]"):
        read_tools([body])
