"""A conversation as the chat template sees it, whatever API it came through.

Every codec brings its messages into this one shape: content is text, arguments are objects, roles are the four that
templates know.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PastToolCall:
    """A tool call that an earlier assistant message made."""

    call_id: str
    name: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `tool_call_id` and `name` belong to tool results."""

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[PastToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A function the model may call. `parameters` is its JSON schema; `rendered` is what the template is shown."""

    name: str
    parameters: JsonObject
    rendered: JsonObject


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is rendered: messages, tools, and the template's own variables (`enable_thinking`, for example).

    `continuation` is the beginning of the answer, which the model goes on with, and so is a call of the tool
    `opened_call`, of which nothing but the name is written; `param` is the field that an error names.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    template_variables: JsonObject = field(default_factory=dict[str, Any])
    add_generation_prompt: bool = True
    continuation: str = ""
    opened_call: str = ""
    param: str = "messages"
