"""Tools of Anthropic's Messages API.

| declared | shown to the model | may be called |
|---|---|---|
| a tool of the client's own | at the beginning | yes |
| the same with `defer_loading` | where a tool's result refers to it | once that happened |
| one that Anthropic runs, or knows the schema of (`web_search_20250305`) | no: dropped, with a line in the log | no |

A deferred tool that appears at the beginning would change the prompt's first part with every search for tools, and
cost the whole prefix cache.
"""

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from lineclear.gateway.codecs.body import convert_field
from lineclear.gateway.codecs.chat_messages import MAX_TOOL_NAME_LEN
from lineclear.gateway.codecs.messages_body import ToolBody, ToolChoiceBody
from lineclear.gateway.codecs.tool_choice import ToolSelection, force_call
from lineclear.gateway.conversation import JsonObject, ToolDefinition
from lineclear.gateway.errors import refuse

logger = logging.getLogger(__name__)

_OWN_TYPES = frozenset({None, "custom"})

_CHOICES = (
    "auto, none, a declared tool by its name; any where one tool may be called: among several a call cannot be forced"
)


@dataclass(frozen=True)
class DeclaredTools:
    """The tools of a request that the client runs itself."""

    at_once: tuple[ToolDefinition, ...]
    deferred: dict[str, ToolDefinition]

    def describe(self, name: str, *, is_first: bool) -> str:
        """What the model is shown where a tool is referred to: the form is that of tools at the beginning.

        The first reference tells all; others only the name, so that a prompt is never much longer than its request.
        """
        tool = self._by_name.get(name)
        if tool is None or not is_first:
            return json.dumps({"name": name}, ensure_ascii=False)
        return json.dumps(tool.rendered, ensure_ascii=False)

    @cached_property
    def _by_name(self) -> dict[str, ToolDefinition]:
        return {tool.name: tool for tool in self.at_once} | self.deferred

    def callable_tools(self, loaded: Iterable[str]) -> tuple[ToolDefinition, ...]:
        """The tools whose calls are calls and not text, given those that results refer to."""
        return (*self.at_once, *(self.deferred[name] for name in loaded if name in self.deferred))


def read_tools(bodies: list[JsonObject]) -> DeclaredTools:
    """The declared tools.

    Raises:
        InvalidRequestError: One of them has no usable name, or a field of the wrong type.
    """
    at_once: list[ToolDefinition] = []
    deferred: dict[str, ToolDefinition] = {}
    for idx, body in enumerate(bodies):
        tool = convert_field(body, ToolBody, f"tools[{idx}]")
        if tool.type not in _OWN_TYPES:
            logger.info("a tool of type %.40s is dropped: nothing runs it", tool.type)
            continue
        definition = _define(tool, f"tools[{idx}]")
        if tool.defer_loading:
            deferred[definition.name] = definition
        else:
            at_once.append(definition)
    return DeclaredTools(tuple(at_once), deferred)


def choose_tools(tools: DeclaredTools, choice: ToolChoiceBody | None, loaded: Iterable[str]) -> ToolSelection:
    """Apply a request's `tool_choice`, in the way of `tool_choice.choose_tools`.

    Args:
        tools: the declared ones.
        choice: what was asked for.
        loaded: names of tools that results refer to.

    Raises:
        InvalidRequestError: It is none of those that are served.
    """
    callable_tools = tools.callable_tools(loaded)
    if choice is None or choice.type == "auto":
        return ToolSelection(tools.at_once, callable_tools)
    if choice.type == "none":
        return ToolSelection((), ())
    if choice.type == "tool":
        callable_tools = tuple(tool for tool in callable_tools if tool.name == choice.name)
    elif choice.type != "any":
        raise refuse("tool_choice.type", choice.type, _CHOICES)
    return force_call(tools.at_once, callable_tools, choice.name or choice.type, _CHOICES)


def _define(tool: ToolBody, path: str) -> ToolDefinition:
    name = tool.name
    if not name or name != name.strip() or len(name) > MAX_TOOL_NAME_LEN:
        raise refuse(f"{path}.name", name, f"1 to {MAX_TOOL_NAME_LEN} characters without spaces around them")
    parameters = tool.input_schema or {"type": "object", "properties": {}}
    function: JsonObject = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = parameters
    return ToolDefinition(name, parameters, {"type": "function", "function": function})
