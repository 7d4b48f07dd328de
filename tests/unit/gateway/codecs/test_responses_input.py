"""What clients of the Responses API send, and what the template is shown of it."""

from typing import Any

import msgspec
import pytest

from lineclear.gateway.codecs.responses import read_conversation
from lineclear.gateway.codecs.responses_body import ResponsesBody
from lineclear.gateway.codecs.responses_tools import ResponseTools, read_tools
from lineclear.gateway.conversation import Conversation, Message, PastToolCall
from lineclear.gateway.errors import InvalidRequestError

USER = {"role": "user", "content": "hi"}
FUNCTION = {"type": "function", "name": "f", "description": "does f", "parameters": {"type": "object"}, "strict": False}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "patches",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"},
}
NAMESPACE = {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION, FUNCTION | {"name": "g"}]}
ALL_TOOLS = [FUNCTION, PATCH, NAMESPACE, {"type": "web_search", "external_web_access": False}, {"type": "tool_search"}]


def read(*items: dict[str, Any], **fields: Any) -> Conversation:
    body = msgspec.convert({"input": list(items)} | fields, ResponsesBody)
    return read_conversation(body, read_tools(body.tools or []))[0]


def call(arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments} | fields


def output(value: Any, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": "c1", "output": value}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "summary": summary, "content": None, "encrypted_content": None} | fields


PAST = PastToolCall("c1", "f", {})


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([{"type": "message", "role": "user", "content": "a"}], [Message("user", "a")]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            [Message("user", "ab")],
        ),
        ([{"role": "developer", "content": "brief"}], [Message("system", "brief")]),
        ([{"role": "system", "content": "brief"}], [Message("system", "brief")]),
        ([{"role": "user"}], [Message("user", "")]),
        ([said("a")], [Message("assistant", "a")]),
        ([said("a"), said("b")], [Message("assistant", "a"), Message("assistant", "b")]),
        ([thought("r "), said("a"), call()], [Message("assistant", "a", "r ", (PAST,))]),
        ([thought("r"), call(), call()], [Message("assistant", "", "r", (PAST, PAST))]),
        (
            [said("a"), call(), thought("r"), said("b")],
            [Message("assistant", "a", None, (PAST,)), Message("assistant", "b", "r")],
        ),
        (
            [thought("s", content=[{"type": "reasoning_text", "text": "r"}]), said("a")],
            [Message("assistant", "a", "r")],
        ),
        ([call(), output("x")], [Message("assistant", "", None, (PAST,)), Message("tool", "x", tool_call_id="c1")]),
        (
            [output([{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:"}])],
            [Message("tool", "x[input_image: this model reads text only]", tool_call_id="c1")],
        ),
        ([output(None)], [Message("tool", "", tool_call_id="c1")]),
        ([output("done", "custom_tool_call_output")], [Message("tool", "done", tool_call_id="c1")]),
        (
            [{"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"}],
            [Message("assistant", "", None, (PastToolCall("c1", "apply_patch", {"input": "*** Begin"}),))],
        ),
        ([{"type": "web_search_call", "status": "completed"}], []),
    ],
)
def test_what_the_template_is_shown(items: list[dict[str, Any]], messages: list[Message]) -> None:
    assert list(read(USER, *items, USER).messages[1:-1]) == messages


def test_a_text_is_a_message_of_the_user() -> None:
    body = msgspec.convert({"input": "hi", "instructions": "brief"}, ResponsesBody)
    conversation, _ = read_conversation(body, read_tools([]))
    assert conversation.messages == (Message("system", "brief"), Message("user", "hi"))


@pytest.mark.parametrize("arguments", ['{"a": ', '"x"', [1], "", None, 5, '{"a": 1}'])
def test_a_broken_call_does_not_end_the_conversation(arguments: Any) -> None:
    [_, message, _] = read(USER, call(arguments), USER).messages
    assert isinstance(message.tool_calls[0].arguments, dict)


def test_tools_of_all_kinds_are_functions_to_the_model() -> None:
    tools = read_tools(ALL_TOOLS)
    definitions = {tool.name: tool for tool in tools.definitions()}
    assert list(definitions) == ["f", "apply_patch", "n__f", "g"]
    patch = definitions["apply_patch"].rendered["function"]
    assert patch["parameters"]["required"] == ["input"]
    assert "start: x" in patch["description"]
    assert definitions["f"].rendered == {
        "type": "function",
        "function": {"name": "f", "description": "does f", "parameters": {"type": "object"}},
    }
    assert tools.by_shown_name["n__f"].namespace == "n"


def test_a_call_in_a_namespace_is_shown_as_the_model_made_it() -> None:
    [_, message] = read(USER, call(namespace="n"), tools=ALL_TOOLS).messages
    assert message.tool_calls[0].name == "n__f"
    [_, message] = read(USER, call(name="gone"), tools=ALL_TOOLS).messages
    assert message.tool_calls[0].name == "gone"


def names(tool_choice: Any) -> tuple[list[str], list[str]]:
    body = msgspec.convert(
        {"input": "x", "tools": [FUNCTION, FUNCTION | {"name": "g"}], "tool_choice": tool_choice}, ResponsesBody
    )
    tools: ResponseTools = read_tools(body.tools or [])
    conversation, callable_tools = read_conversation(body, tools)
    return [tool.name for tool in conversation.tools], [tool.name for tool in callable_tools]


def test_the_choice_of_tools() -> None:
    assert names(None) == names("auto") == (["f", "g"], ["f", "g"])
    assert names("none") == ([], [])
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    assert names(allowed) == (["f", "g"], ["g"])
    assert names({"type": "function", "name": "g"}) == (["f", "g"], ["g"])


@pytest.mark.parametrize(
    ("reasoning", "variables"),
    [
        (None, {}),
        ({"summary": "auto"}, {}),
        ({"effort": "none"}, {"enable_thinking": False}),
        ({"effort": "high"}, {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_reasoning(reasoning: Any, variables: dict[str, Any]) -> None:
    assert read(USER, reasoning=reasoning).template_variables == variables


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "nothing"}]}, "input[0].type"),
        ({"input": [USER, {"role": "user", "content": [{"type": "input_image"}]}]}, "input[1].content[0].type"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [output(5)]}, "input[0].output"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input[0].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": ""}]}]},
            "tools[0].tools[0].name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.type"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    body = msgspec.convert({"input": "x"} | fields, ResponsesBody)
    with pytest.raises(InvalidRequestError) as raised:
        read_conversation(body, read_tools(body.tools or []))
    assert raised.value.param == param
    assert raised.value.message.startswith(f"{param}: ")
