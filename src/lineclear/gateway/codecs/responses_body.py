"""Bodies of OpenAI's Responses API, as clients send them.

An item, like a block of the Messages API, is one struct with all fields that any item here has: items of unknown types
can still be read, and are refused, or left out, by their type.
"""

from typing import Annotated, Any

import msgspec

from lineclear.gateway.codecs.body import JsonValue, SamplingBody
from lineclear.gateway.codecs.chat_messages import MAX_PIECES, ContentBody, ContentPart

MAX_ITEMS = 131_072
"""Twice as many as a chat completion may have messages: calls and results are items of their own."""

MAX_TOOLS = 4096
"""As many as a chat completion may declare."""


class Item(msgspec.Struct):
    """An item of the input; without a type it is a message."""

    type: str | None = None
    role: str | None = None
    content: JsonValue = None
    """Of a message or of reasoning."""
    summary: Annotated[list[ContentPart], msgspec.Meta(max_length=MAX_PIECES)] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: JsonValue = None
    input: JsonValue = None
    """Of a call of a custom tool."""
    output: JsonValue = None


class NestedContent(msgspec.Struct):
    """The content of an item whose fields were read without a type."""

    content: ContentBody = None
    output: ContentBody = None


class GrammarBody(msgspec.Struct):
    """The form of a custom tool's input."""

    type: str | None = None
    syntax: str | None = None
    definition: str | None = None


class ToolBody(msgspec.Struct):
    """A tool as clients declare it."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    format: GrammarBody | None = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_TOOLS)] | None = None


class ReasoningBody(msgspec.Struct):
    """Whether and how much the model thinks before it answers."""

    effort: str | None = None
    summary: str | None = None


class TextFormatBody(msgspec.Struct):
    """The shape of the answer's text."""

    type: str


class TextBody(msgspec.Struct):
    """What is wished of the answer's text."""

    format: TextFormatBody | None = None


class ResponsesBody(SamplingBody, kw_only=True):
    """The body of a response that is asked for."""

    input: str | Annotated[list[Item], msgspec.Meta(max_length=MAX_ITEMS)]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningBody | None = None
    text: TextBody | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: JsonValue = None
