"""Bodies of Anthropic's Messages API, as clients send them.

Clients send fields, blocks and tools of every age of that API. So a block is one struct with all fields that any block
here has: a block of an unknown type can still be read, and is refused, or left out, by its type.
"""

from typing import Annotated, Any

import msgspec

from lineclear.gateway.codecs.body import JsonValue, SamplingBody, StopString
from lineclear.gateway.codecs.chat_messages import MAX_PIECES

MAX_MESSAGES = 65_536
"""As many as a chat completion may have."""

MAX_TOOLS = 4096
"""As many as a chat completion may declare."""


class Source(msgspec.Struct):
    """Where a document's text is."""

    type: str
    data: str | None = None
    content: "str | Annotated[list[Block], msgspec.Meta(max_length=MAX_PIECES)] | None" = None


class Block(msgspec.Struct):
    """A block of a message's content, or of a tool's result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: JsonValue = None
    tool_use_id: str | None = None
    content: JsonValue = None
    """Of a tool's result or a search result; other blocks have other things there."""
    is_error: bool | None = None
    source: JsonValue = None
    title: str | None = None
    tool_name: str | None = None


Content = str | Annotated[list[Block], msgspec.Meta(max_length=MAX_PIECES)]


class NestedContent(msgspec.Struct):
    """The content of a block whose `content` was read without a type."""

    content: Content | None = None


class MessageBody(msgspec.Struct):
    """A message as clients send it."""

    role: str
    content: Content | None = None


class ToolBody(msgspec.Struct):
    """A tool as clients declare it; without a type, or of type `custom`, it is the client's own."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None


class ToolChoiceBody(msgspec.Struct):
    """Which tools may be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingBody(msgspec.Struct):
    """Whether the model thinks before it answers."""

    type: str


class OutputFormatBody(msgspec.Struct):
    """The shape of the answer."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfigBody(msgspec.Struct):
    """How much work an answer is worth, and its shape."""

    effort: str | None = None
    format: OutputFormatBody | None = None


class MessagesBody(SamplingBody, kw_only=True):
    """The body of a message that is asked for, or whose prompt is counted."""

    messages: Annotated[list[MessageBody], msgspec.Meta(max_length=MAX_MESSAGES)]
    model: str | None = None
    system: Content | None = None
    max_tokens: int | None = None
    stop_sequences: Annotated[list[StopString], msgspec.Meta(max_length=16)] | None = None
    stream: bool | None = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceBody | None = None
    thinking: ThinkingBody | None = None
    output_config: OutputConfigBody | None = None
    metadata: JsonValue = None
    prompt_cache_key: JsonValue = None
