"""Tools of OpenAI's Responses API.

| declared | shown to the model | a call of it is |
|---|---|---|
| `function` | as it is | a `function_call` |
| `custom` | a function with the one parameter `input`, a text; its grammar in the description | a `custom_tool_call` |
| `namespace` | its tools, among the others | a `function_call` that names the namespace |
| anything else (`web_search`, `tool_search`, …) | no: dropped, with a line in the log | text |

A tool of a namespace is shown under its own name, or, where another tool has that, as `NAMESPACE__NAME`.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from lineclear.gateway.codecs.body import convert_field
from lineclear.gateway.codecs.chat_messages import MAX_TOOL_NAME_LEN
from lineclear.gateway.codecs.responses_body import GrammarBody, ToolBody
from lineclear.gateway.conversation import JsonObject, ToolDefinition
from lineclear.gateway.errors import refuse

logger = logging.getLogger(__name__)

INPUT = "input"
"""The one parameter of a custom tool, as the model is shown it."""


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool as the client knows it."""

    name: str
    namespace: str | None
    is_custom: bool
    description: str | None
    parameters: JsonObject


@dataclass(frozen=True)
class ResponseTools:
    """The tools of a request, each with the name that the model is shown."""

    declared: tuple[tuple[str, DeclaredTool], ...]

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What the model is shown."""
        return tuple(_define(name, tool) for name, tool in self.declared)

    def shown_name(self, name: str, namespace: str | None) -> str:
        """The name under which the model knows a tool; a tool that is not declared keeps its own."""
        return self._shown_names.get((name, namespace), name)

    @cached_property
    def by_shown_name(self) -> dict[str, DeclaredTool]:
        """The tools by the names that the model is shown; of two with one name the later."""
        return dict(self.declared)

    @cached_property
    def _shown_names(self) -> dict[tuple[str, str | None], str]:
        return {(tool.name, tool.namespace): shown for shown, tool in self.declared}


def read_tools(bodies: list[JsonObject]) -> ResponseTools:
    """The declared tools.

    Raises:
        InvalidRequestError: One of them has no usable name, or a field of the wrong type.
    """
    tools = list(_read_all(bodies, "tools", namespace=None))
    num_by_name = Counter(tool.name for tool in tools)
    return ResponseTools(tuple((_shown_name(tool, is_unique=num_by_name[tool.name] == 1), tool) for tool in tools))


def _read_all(bodies: list[JsonObject], parent: str, namespace: str | None) -> Iterator[DeclaredTool]:
    for idx, body in enumerate(bodies):
        path = f"{parent}[{idx}]"
        tool = convert_field(body, ToolBody, path)
        if tool.type == "function":
            parameters = tool.parameters or {"type": "object", "properties": {}}
            yield DeclaredTool(
                _name_of(tool, path), namespace, is_custom=False, description=tool.description, parameters=parameters
            )
        elif tool.type == "custom":
            yield _read_custom(tool, path, namespace)
        elif tool.type == "namespace" and namespace is None:
            yield from _read_all(tool.tools or [], f"{path}.tools", _name_of(tool, path))
        else:
            logger.info("a tool of type %.40s is dropped: nothing runs it", tool.type)


def _read_custom(tool: ToolBody, path: str, namespace: str | None) -> DeclaredTool:
    parameters = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
    description = "\n\n".join(filter(None, [tool.description, _describe(tool.format)]))
    return DeclaredTool(
        _name_of(tool, path), namespace, is_custom=True, description=description or None, parameters=parameters
    )


def _describe(grammar: GrammarBody | None) -> str | None:
    if grammar is None or grammar.definition is None:
        return None
    return f"The input has this grammar ({grammar.syntax or 'grammar'}):\n{grammar.definition}"


def _name_of(tool: ToolBody, path: str) -> str:
    name = tool.name
    if not name or name != name.strip() or len(name) > MAX_TOOL_NAME_LEN:
        raise refuse(f"{path}.name", name, f"1 to {MAX_TOOL_NAME_LEN} characters without spaces around them")
    return name


def _shown_name(tool: DeclaredTool, *, is_unique: bool) -> str:
    return tool.name if is_unique or tool.namespace is None else f"{tool.namespace}__{tool.name}"


def _define(shown_name: str, tool: DeclaredTool) -> ToolDefinition:
    function: JsonObject = {"name": shown_name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters
    return ToolDefinition(shown_name, tool.parameters, {"type": "function", "function": function})
