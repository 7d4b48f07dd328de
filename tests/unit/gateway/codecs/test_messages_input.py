"""What clients of Anthropic's API send, and what the template is shown of it."""

import json
from typing import Any

import msgspec
import pytest

from lineclear.gateway.codecs.messages import read_conversation
from lineclear.gateway.codecs.messages_body import MessagesBody
from lineclear.gateway.conversation import Conversation, Message, PastToolCall
from lineclear.gateway.errors import InvalidRequestError

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "description": "does f", "input_schema": {"type": "object", "properties": {"a": {}}}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}


def read(*messages: dict[str, Any], **fields: Any) -> Conversation:
    return read_conversation(msgspec.convert({"messages": list(messages)} | fields, MessagesBody))[0]


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value} | fields


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content} | fields


def use(arguments: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "t1", "name": "f", "input": arguments} | fields


def assistant(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def user(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        ({"role": "user", "content": "a"}, [Message("user", "a")]),
        (user(text("a", cache_control={"type": "ephemeral"}), text("b")), [Message("user", "ab")]),
        (user(), [Message("user", "")]),
        ({"role": "user"}, [Message("user", "")]),
        ({"role": "system", "content": "brief"}, [Message("system", "brief")]),
        ({"role": "system", "content": [text("be "), text("brief")]}, [Message("system", "be brief")]),
        ({"role": "system", "content": []}, []),
        (assistant(), [Message("assistant", "")]),
        (assistant(text("a"), use({"a": 1})), [Message("assistant", "a", None, (PastToolCall("t1", "f", {"a": 1}),))]),
        (
            assistant({"type": "thinking", "thinking": "r ", "signature": "x"}, text("a"), use({})),
            [Message("assistant", "a", "r ", (PastToolCall("t1", "f", {}),))],
        ),
        (
            assistant({"type": "redacted_thinking", "data": "x"}, {"type": "server_tool_use", "id": "s"}, use({})),
            [Message("assistant", "", None, (PastToolCall("t1", "f", {}),))],
        ),
        (assistant({"type": "web_search_tool_result", "content": [{"type": "x"}]}), [Message("assistant", "")]),
        (
            assistant(text("a"), use({}), text("b")),
            [Message("assistant", "a", None, (PastToolCall("t1", "f", {}),)), Message("assistant", "b")],
        ),
        (user(result("out")), [Message("tool", "out", tool_call_id="t1")]),
        (user(result(None)), [Message("tool", "", tool_call_id="t1")]),
        (user({"type": "tool_result", "tool_use_id": "t1"}), [Message("tool", "", tool_call_id="t1")]),
        (user(result([text("a"), text("b")])), [Message("tool", "ab", tool_call_id="t1")]),
        (user(result("no", is_error=True)), [Message("tool", "Error: no", tool_call_id="t1")]),
        (user(result([IMAGE])), [Message("tool", "[image: this model reads text only]", tool_call_id="t1")]),
        (
            user(result("out"), text("and?")),
            [Message("tool", "out", tool_call_id="t1"), Message("user", "and?")],
        ),
        (
            user(text("look"), result("out"), result("two")),
            [
                Message("user", "look"),
                Message("tool", "out", tool_call_id="t1"),
                Message("tool", "two", tool_call_id="t1"),
            ],
        ),
        (
            user(
                {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}
            ),
            [Message("user", "T\nd")],
        ),
        (
            user({"type": "document", "source": {"type": "content", "content": [text("d"), IMAGE]}}),
            [Message("user", "d[image]")],
        ),
        (
            user({"type": "search_result", "source": "s", "title": "T", "content": [text("d")]}),
            [Message("user", "T\nd")],
        ),
    ],
)
def test_what_the_template_is_shown(body: dict[str, Any], messages: list[Message]) -> None:
    assert list(read(USER, body, USER).messages[1:-1]) == messages


@pytest.mark.parametrize("arguments", ['{"a": ', '"x"', [1], "", None, 5, '{"a": 1}'])
def test_a_broken_call_does_not_end_the_conversation(arguments: Any) -> None:
    [_, message, _] = read(USER, assistant(use(arguments)), USER).messages
    assert isinstance(message.tool_calls[0].arguments, dict)


@pytest.mark.parametrize(
    ("system", "shown"),
    [
        ("be brief", ["be brief"]),
        ([text("a"), text("\nb")], ["a\nb"]),
        ("", []),
        ([], []),
        ([text("x-anthropic-billing-header: cc_version=1; cch=aaa;")], []),
        ([text("x-anthropic-billing-header: cch=aaa;"), text("a")], ["a"]),
        ("x-anthropic-billing-header: cch=aaa;\r\n x-anthropic-b: 2\na\nx-anthropic-c", ["a\nx-anthropic-c"]),
    ],
)
def test_what_is_said_to_anthropics_accounts_is_left_out(system: Any, shown: list[str]) -> None:
    messages = read(USER, {"role": "system", "content": system}, USER, system=system).messages
    assert [message.content for message in messages if message.role == "system"] == shown * 2
    assert [message.role for message in messages] == ["system"] * len(shown) + ["user"] + ["system"] * len(shown) + [
        "user"
    ]


def test_history_that_fits_nothing_is_kept_in_order() -> None:
    """A cancelled turn leaves calls without results, results without calls, and two for one."""
    conversation = read(
        assistant(use({}), use({})), USER, user(result("a"), result("b")), user(result("c", tool_use_id="x"))
    )
    assert [message.role for message in conversation.messages] == ["assistant", "user", "tool", "tool", "tool"]


def test_a_message_that_was_begun_is_gone_on_with() -> None:
    conversation = read(USER, assistant(text("The answer "), text("is")))
    assert (conversation.continuation, len(conversation.messages)) == ("The answer is", 1)
    for last in (
        assistant(text("a"), use({})),
        assistant(),
        assistant({"type": "thinking", "thinking": "r"}, text("a")),
    ):
        conversation = read(USER, last)
        assert (conversation.continuation, len(conversation.messages)) == ("", 2)


def test_deferred_tools_are_shown_where_a_result_refers_to_them() -> None:
    later = TOOL | {"name": "later", "defer_loading": True}
    unused = TOOL | {"name": "unused", "defer_loading": True}
    search = [{"type": "tool_reference", "tool_name": "later"}, {"type": "tool_reference", "tool_name": "nobody"}]
    body = msgspec.convert({"messages": [USER, user(result(search))], "tools": [unused, TOOL, later]}, MessagesBody)
    conversation, callable_tools = read_conversation(body)
    assert [tool.name for tool in conversation.tools] == ["f"]
    assert [tool.name for tool in callable_tools] == ["f", "later"]
    [_, message] = conversation.messages
    opening, described, unknown, closing = message.content.split("\n")
    assert (opening, unknown, closing) == ("<tools>", '{"name": "nobody"}', "</tools>")
    assert json.loads(described)["function"] == {
        "name": "later",
        "description": "does f",
        "parameters": TOOL["input_schema"],
    }


def test_a_tool_that_is_referred_to_often_is_described_once() -> None:
    """Else a small request would become a prompt of any length."""
    later = TOOL | {"name": "later", "defer_loading": True, "description": "x" * 1000}
    search = result([{"type": "tool_reference", "tool_name": "later"}] * 3)
    conversation = read(USER, user(search, search), tools=[later])
    assert sum(message.content.count("x" * 1000) for message in conversation.messages) == 1
    assert conversation.messages[-1].content.count('{"name": "later"}') == 3


def test_tools_that_nothing_here_runs_are_dropped() -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}, {"type": "bash_20250124"}, TOOL]
    assert [tool.name for tool in read(USER, tools=tools).tools] == ["f"]
    assert read(USER, tools=[TOOL], tool_choice={"type": "auto"}).tools
    assert read(USER, tools=[TOOL], tool_choice={"type": "none"}).tools == ()
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        assert read(USER, tools=[TOOL], tool_choice=choice).opened_call == "f"


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        (None, {}),
        ({"type": "enabled", "budget_tokens": 9}, {"enable_thinking": True}),
        ({"type": "adaptive", "display": "omitted"}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
    ],
)
def test_thinking(thinking: Any, variables: dict[str, Any]) -> None:
    assert read(USER, thinking=thinking).template_variables == variables


def test_effort_and_the_shape_of_the_answer() -> None:
    output = {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    conversation = read(USER, system="s", output_config=output)
    assert conversation.template_variables == {"reasoning_effort": "high"}
    assert conversation.messages[0].content.startswith("s\n\n")
    assert conversation.messages[0].content.endswith('{"type": "object"}')


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, user(IMAGE)]}, "messages[1].content[0].type"),
        ({"messages": [user({"type": "document", "source": {"type": "base64"}})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "document"})]}, "messages[0].content[0].source"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user({"type": "nothing"})]}, "messages[0].content[0].type"),
        ({"messages": [assistant({"type": "tool_use", "input": {}})]}, "messages[0].content[0].name"),
        ({"messages": [assistant(IMAGE)]}, "messages[0].content[0].type"),
        ({"messages": [user(result(5))]}, "messages[0].content[0].content"),
        ({"messages": [user(result([{"type": 5}]))]}, "messages[0].content[0].content[0].type"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"tools": [{"name": " "}]}, "tools[0].name"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}, "tools": [TOOL, TOOL | {"name": "g"}]}, "tool_choice"),
        ({"tool_choice": {"type": "any"}, "tools": [TOOL], "thinking": {"type": "adaptive"}}, "thinking.type"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"messages": [USER, assistant(text("a"))], "thinking": {"type": "enabled"}}, "thinking.type"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        read_conversation(msgspec.convert({"messages": [USER]} | fields, MessagesBody))
    assert raised.value.param == param
    assert raised.value.message.startswith(f"{param}: got ")
