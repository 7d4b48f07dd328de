"""Messages and tools of the chat API, brought into the shape of `conversation`.

Coding agents send what they got back, and what they got back from other servers; so whatever can be understood is:
| sent | understood as |
|---|---|
| role `developer`, `function` | `system`, `tool` |
| content as a list of text parts | the texts, one after the other |
| content `null` or absent, from assistant or tool | no content |
| arguments as a JSON string, an object, `null`, or not JSON at all | an object; what is none becomes one |
| `reasoning` | `reasoning_content` |
| `function_call`, the older form of `tool_calls`, from the assistant | a tool call |
| content that begins with `<think>…</think>`, from the assistant | reasoning, then content |
| an image, sound or file in a tool's content | a note that it cannot be read: the user can take nothing back there |
What the model could not be shown is refused: images, sound and files from the user, and `null` from the user. So is
what asks for an answer that goes on with a message (`prefix`, `partial`).
"""

from typing import Annotated, Any

import msgspec

from lineclear.gateway.codecs.body import JsonValue, convert_field
from lineclear.gateway.conversation import JsonObject, Message, PastToolCall, Role, ToolDefinition
from lineclear.gateway.errors import refuse
from lineclear.gateway.fragments import Marker

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})

MAX_TOOL_NAME_LEN = 256

MAX_PIECES = 4096
"""Parts of one message's content, and calls in it."""


class ContentPart(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


ContentBody = str | Annotated[list[str | ContentPart], msgspec.Meta(max_length=MAX_PIECES)] | None


class FunctionCallBody(msgspec.Struct):
    """The function of a past tool call."""

    name: str
    arguments: JsonValue = None


class ToolCallBody(msgspec.Struct):
    """A tool call in a message that comes back."""

    function: FunctionCallBody
    id: str | None = None


class MessageBody(msgspec.Struct):
    """A message as clients send it."""

    role: str
    content: ContentBody = None
    reasoning_content: str | None = None
    reasoning: JsonValue = None
    tool_calls: Annotated[list[ToolCallBody], msgspec.Meta(max_length=MAX_PIECES)] | None = None
    function_call: FunctionCallBody | None = None
    tool_call_id: str | None = None
    name: str | None = None
    audio: JsonValue = None
    prefix: bool | None = None
    partial: bool | None = None


class FunctionBody(msgspec.Struct):
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] | None = None


class ToolBody(msgspec.Struct):
    """A tool as clients declare it."""

    type: str
    function: FunctionBody | None = None


def read_messages(bodies: list[MessageBody]) -> tuple[Message, ...]:
    """The messages of a conversation.

    Raises:
        InvalidRequestError: One of them cannot be shown to the model.
    """
    return tuple(_read_message(body, f"messages[{idx}]") for idx, body in enumerate(bodies))


def read_tools(bodies: list[JsonObject]) -> tuple[ToolDefinition, ...]:
    """The declared tools.

    Raises:
        InvalidRequestError: One of them is no function, or has no usable name.
    """
    return tuple(_read_tool(body, f"tools[{idx}]") for idx, body in enumerate(bodies))


def _read_message(body: MessageBody, path: str) -> Message:
    role = _ROLES.get(body.role)
    if role is None:
        raise refuse(f"{path}.role", body.role, "one of " + ", ".join(_ROLES))
    if body.content is None and role in {"system", "user"}:
        raise refuse(f"{path}.content", None, "a string, or a list of text parts")
    _refuse_unserved(body, path)
    read = read_tool_content if role == "tool" else read_content
    content = read(body.content, f"{path}.content")
    reasoning = body.reasoning_content
    if reasoning is None and isinstance(body.reasoning, str):
        reasoning = body.reasoning
    if role == "assistant" and reasoning is None:
        reasoning, content = _split_reasoning(content)
    return Message(
        role=role,
        content=content,
        reasoning=reasoning if role == "assistant" else None,
        tool_calls=_read_tool_calls(body) if role == "assistant" else (),
        tool_call_id=body.tool_call_id,
        name=body.name,
    )


def _refuse_unserved(body: MessageBody, path: str) -> None:
    if body.audio is not None:
        raise refuse(f"{path}.audio", body.audio, "null: this model reads no sounds", "unserved_field")
    for name, value in (("prefix", body.prefix), ("partial", body.partial)):
        if value:
            allowed = "false: the model always begins a message of its own"
            raise refuse(f"{path}.{name}", value, allowed, "unserved_field")


def read_content(content: ContentBody, path: str) -> str:
    """The text of a message's content.

    Raises:
        InvalidRequestError: A part of it is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_read_part(part, f"{path}[{idx}]") for idx, part in enumerate(content))


def read_tool_content(content: ContentBody, path: str) -> str:
    """The text of what a tool brought, with notes for what is none.

    Raises:
        InvalidRequestError: A text is missing.
    """
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(
        f"[{part.type}: this model reads text only]"
        if isinstance(part, ContentPart) and part.type not in _TEXT_PARTS
        else _read_part(part, f"{path}[{idx}]")
        for idx, part in enumerate(content)
    )


def _read_part(part: str | ContentPart, path: str) -> str:
    if isinstance(part, str):
        return part
    if part.type not in _TEXT_PARTS:
        raise refuse(f"{path}.type", part.type, "text: this model reads no images, sounds or files")
    text = part.text if part.text is not None else part.refusal
    if text is None:
        raise refuse(f"{path}.text", None, "a string")
    return text


def _split_reasoning(content: str) -> tuple[str | None, str]:
    opening, closing = Marker.THINK_OPEN.value, Marker.THINK_CLOSE.value
    if not content.startswith(opening) or closing not in content:
        return None, content
    reasoning, _, rest = content.removeprefix(opening).partition(closing)
    return reasoning, rest


def _read_tool_calls(message: MessageBody) -> tuple[PastToolCall, ...]:
    calls = [(call.id or "", call.function) for call in message.tool_calls or []]
    if message.function_call is not None:
        calls.append(("", message.function_call))
    return tuple(PastToolCall(call_id, call.name, read_arguments(call.arguments)) for call_id, call in calls)


def read_arguments(arguments: object) -> JsonObject:
    """The arguments of a past call as an object, whatever was sent: a broken call must not end the conversation."""
    value = arguments
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            value = arguments
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"arguments": value}


def _read_tool(body: JsonObject, path: str) -> ToolDefinition:
    tool = convert_field(body, ToolBody, path)
    if tool.type != "function" or tool.function is None:
        raise refuse(f"{path}.type", tool.type, "function, with a function object")
    name = tool.function.name
    if not name or name != name.strip() or len(name) > MAX_TOOL_NAME_LEN:
        raise refuse(f"{path}.function.name", name, f"1 to {MAX_TOOL_NAME_LEN} characters without spaces around them")
    return ToolDefinition(name, tool.function.parameters or {}, body)
