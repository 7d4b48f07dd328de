"""Which tools are shown and which may be called."""

import pytest

from lineclear.gateway.codecs.tool_choice import choose_tools
from lineclear.gateway.conversation import ToolDefinition
from lineclear.gateway.errors import InvalidRequestError

A, B = ToolDefinition("a", {}, {}), ToolDefinition("b", {}, {})


@pytest.mark.parametrize("tool_choice", [None, "auto"])
def test_the_model_decides(tool_choice: object) -> None:
    selection = choose_tools((A, B), tool_choice)
    assert (selection.shown_tools, selection.callable_tools) == ((A, B), (A, B))


def test_none_hides_all() -> None:
    selection = choose_tools((A, B), "none")
    assert (selection.shown_tools, selection.callable_tools) == ((), ())


def test_allowed_tools_are_callable_and_all_are_shown() -> None:
    named = [{"type": "function", "function": {"name": "b"}}]
    selection = choose_tools((A, B), {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}})
    assert (selection.shown_tools, selection.callable_tools) == ((A, B), (B,))


@pytest.mark.parametrize(
    "tool_choice",
    [
        "required",
        "any",
        5,
        {"type": "function", "function": {"name": "a"}},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
        {},
    ],
)
def test_a_call_cannot_be_forced(tool_choice: object) -> None:
    with pytest.raises(InvalidRequestError, match="tool_choice"):
        choose_tools((A, B), tool_choice)
