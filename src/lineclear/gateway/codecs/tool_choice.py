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
    """The Responses API says flatly what the chat API says one level deeper."""

    type: str
    allowed_tools: _AllowedTools | None = None
    mode: str | None = None
    tools: list[dict[str, Any]] | None = None

    @property
    def allowed(self) -> _AllowedTools | None:
        """The tools that may be called, whichever way they were given."""
        if self.allowed_tools is not None or self.mode is None or self.tools is None:
            return self.allowed_tools
        return _AllowedTools(self.mode, self.tools)


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
    allowed = choice.allowed
    if choice.type != "allowed_tools" or allowed is None or allowed.mode != "auto":
        raise refuse("tool_choice", tool_choice, _ALLOWED)
    names = {_name(tool) for tool in allowed.tools}
    return ToolSelection(tools, tuple(tool for tool in tools if tool.name in names))


def _name(tool: dict[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")
