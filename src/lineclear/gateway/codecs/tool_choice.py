"""`tool_choice`: which tools the model is shown, and which it may call.

| tool_choice | shown | callable |
|---|---|---|
| absent, `auto` | all | all |
| `none` | none | none |
| `allowed_tools`, mode `auto` | all | the named ones |
| `required`, a named function, mode `required` | refused: the model cannot be forced | |
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from lineclear.gateway.codecs.body import convert_field
from lineclear.gateway.conversation import ToolDefinition
from lineclear.gateway.errors import refuse

_ALLOWED = "auto, none, or allowed_tools with mode auto: a call cannot be forced"


class _AllowedTools(msgspec.Struct):
    mode: str
    tools: list[dict[str, Any]]


class _ToolChoice(msgspec.Struct):
    type: str
    allowed_tools: _AllowedTools | None = None


@dataclass(frozen=True, slots=True)
class ToolSelection:
    """The tools in the prompt, and those whose calls are calls and not text."""

    shown_tools: tuple[ToolDefinition, ...]
    callable_tools: tuple[ToolDefinition, ...]


def choose_tools(tools: tuple[ToolDefinition, ...], tool_choice: object) -> ToolSelection:
    """Apply a request's `tool_choice`.

    Raises:
        InvalidRequestError: It is none of those that are served.
    """
    if tool_choice is None or tool_choice == "auto":
        return ToolSelection(tools, tools)
    if tool_choice == "none":
        return ToolSelection((), ())
    if isinstance(tool_choice, str):
        raise refuse("tool_choice", tool_choice, _ALLOWED)
    choice = convert_field(tool_choice, _ToolChoice, "tool_choice")
    if choice.type != "allowed_tools" or choice.allowed_tools is None or choice.allowed_tools.mode != "auto":
        raise refuse("tool_choice", tool_choice, _ALLOWED)
    names = {_name(tool) for tool in choice.allowed_tools.tools}
    return ToolSelection(tools, tuple(tool for tool in tools if tool.name in names))


def _name(tool: dict[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")
