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


ALLOWED_B = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"function": {"name": "b"}}]}}


@pytest.mark.parametrize(
    "tool_choice",
    [{"type": "function", "function": {"name": "b"}}, {"type": "function", "name": "b"}, ALLOWED_B],
)
def test_one_tool_can_be_forced(tool_choice: object) -> None:
    selection = choose_tools((A, B), tool_choice)
    assert (selection.shown_tools, selection.callable_tools, selection.opened_call) == ((A, B), (B,), "b")


def test_a_call_is_required_of_the_only_tool() -> None:
    assert choose_tools((A,), "required").opened_call == "a"


@pytest.mark.parametrize(
    "tool_choice",
    [
        "required",
        "any",
        5,
        {"type": "function", "function": {"name": "nobody"}},
        {"type": "function"},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "maybe", "tools": []}},
        {},
    ],
)
def test_what_else_is_asked_for_is_refused(tool_choice: object) -> None:
    with pytest.raises(InvalidRequestError, match="tool_choice"):
        choose_tools((A, B), tool_choice)
