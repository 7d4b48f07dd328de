"""`tool_choice`: which tools the model is shown, and which it may call.

| tool_choice | shown | callable |
|---|---|---|
| absent, `auto` | all | all |
| `none` | none | none |
| `allowed_tools`, mode `auto` | all | the named ones |
| a named function | all | that one, and it is called |
| `required`, or mode `required`, and one tool is callable | all | that one, and it is called |
| the same with several | refused: which one is not known before the model has chosen, and it might choose none | |

A call is made sure of by writing its beginning into the prompt: the model can only go on with its arguments.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from lineclear.gateway.codecs.body import convert_field
from lineclear.gateway.conversation import ToolDefinition
from lineclear.gateway.errors import refuse

_ALLOWED = (
    "auto, none, a declared function by its name, allowed_tools; required where one tool may be called: "
    "among several a call cannot be forced"
)


class _AllowedTools(msgspec.Struct):
    mode: str
    tools: list[dict[str, Any]]


class _ToolChoice(msgspec.Struct):
    """The Responses API says flatly what the chat API says one level deeper."""

    type: str
    name: str | None = None
    function: dict[str, Any] | None = None
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
    """The tools in the prompt, those whose calls are calls and not text, and the name of one that must be called."""

    shown_tools: tuple[ToolDefinition, ...]
    callable_tools: tuple[ToolDefinition, ...]
    opened_call: str = ""


def choose_tools(tools: tuple[ToolDefinition, ...], tool_choice: object) -> ToolSelection:
    """Apply a request's `tool_choice`.

    Raises:
        InvalidRequestError: It is none of those that are served.
    """
    if tool_choice is None or tool_choice == "auto":
        return ToolSelection(tools, tools)
    if tool_choice == "none":
        return ToolSelection((), ())
    if tool_choice == "required":
        return force_call(tools, tools, tool_choice, _ALLOWED)
    if isinstance(tool_choice, str):
        raise refuse("tool_choice", tool_choice, _ALLOWED)
    choice = convert_field(tool_choice, _ToolChoice, "tool_choice")
    if choice.type in {"function", "custom"}:
        name = _name({"name": choice.name, "function": choice.function})
        named = tuple(tool for tool in tools if tool.name == name)
        return force_call(tools, named, tool_choice, _ALLOWED)
    allowed = choice.allowed
    if choice.type != "allowed_tools" or allowed is None or allowed.mode not in {"auto", "required"}:
        raise refuse("tool_choice", tool_choice, _ALLOWED)
    names = {_name(tool) for tool in allowed.tools}
    named = tuple(tool for tool in tools if tool.name in names)
    return ToolSelection(tools, named) if allowed.mode == "auto" else force_call(tools, named, tool_choice, _ALLOWED)


def force_call(
    shown: tuple[ToolDefinition, ...], callable_tools: tuple[ToolDefinition, ...], tool_choice: object, allowed: str
) -> ToolSelection:
    """Make sure that the one callable tool is called.

    Raises:
        InvalidRequestError: There are several, or there is none.
    """
    if len(callable_tools) != 1:
        raise refuse("tool_choice", tool_choice, allowed)
    return ToolSelection(shown, callable_tools, callable_tools[0].name)


def _name(tool: dict[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")
