"""The checkpoint's chat template, rendered so that nothing anybody wrote can pass for the chat format's own tokens.

Before rendering, every literal of a control token inside a message, a tool or a template variable is broken by one
*guard* character that occurs nowhere else in the request. What the template itself writes stays whole. After rendering,
`Tokenization.encode_rendered` splits at whole literals and drops the guard.

Invariants:
1. A control token in the rendered text was written by the template.
2. Without the guard, the rendered text is what a plain rendering would have been.

Source: the conventions of chat templates in Hugging Face `transformers` (`chat_template_utils`): sandbox, `tojson`
without escapes, `raise_exception`, `strftime_now`, loop controls.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lineclear.base.errors import CheckpointError
from lineclear.gateway.conversation import Conversation, JsonObject, Message
from lineclear.gateway.errors import InvalidRequestError

GUARDS = (*map(chr, range(0xFDD0, 0xFDF0)), *map(chr, range(0xF0000, 0xF1000)))
"""Candidates for the guard: noncharacters and private characters, which real text has no use for."""

RESERVED_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})
"""Names that the request's own fields fill."""

_RENDER_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a template raises on messages that it cannot show."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation; `guard` breaks the literals that its values contained."""

    text: str
    guard: str

    def ends_with(self, literal: str) -> bool:
        """Whether the last thing written is this control token, whitespace aside."""
        return self.text.rstrip().endswith(literal)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja source.
        variables: what the checkpoint adds: `bos_token`, `eos_token` and so on.
        control_literals: literals of the control tokens of the tokenizer.

    Raises:
        CheckpointError: The source is not a Jinja template.
    """

    def __init__(self, source: str, variables: JsonObject, control_literals: tuple[str, ...]) -> None:
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise CheckpointError("chat_template", f"line {error.lineno}", f"a Jinja template ({error})") from error
        self._variables = {**variables, "raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._breakable = _breakable_pattern(control_literals)

    def render(self, conversation: Conversation) -> Rendered:
        """Render a conversation.

        Raises:
            InvalidRequestError: The template refuses the messages.
        """
        values = {
            "messages": [_message_object(message) for message in conversation.messages],
            "tools": [tool.rendered for tool in conversation.tools] or None,
            **conversation.template_variables,
        }
        guard = _unused_guard(values)
        guarded = cast("JsonObject", self._break_literals(values, guard))
        try:
            text = self._template.render(
                **self._variables, **guarded, add_generation_prompt=conversation.add_generation_prompt
            )
        except _RENDER_ERRORS as error:
            message = str(error).replace(guard, "")
            raise InvalidRequestError(
                f"messages: the model's chat template cannot show them ({message})", "messages"
            ) from None
        return Rendered(text, guard)

    def _break_literals(self, value: object, guard: str) -> object:
        if isinstance(value, str):
            return self._breakable.sub(lambda match: match[0][0] + guard + match[0][1:], value)
        if isinstance(value, dict):
            items = cast("JsonObject", value).items()
            return {self._break_literals(key, guard): self._break_literals(item, guard) for key, item in items}
        if isinstance(value, list):
            return [self._break_literals(item, guard) for item in cast("list[Any]", value)]
        return value


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        autoescape=False,
    )
    environment.filters["tojson"] = _to_json
    return environment


def _breakable_pattern(literals: tuple[str, ...]) -> re.Pattern[str]:
    """Whole literals anywhere, and beginnings of literals where the text ends: the template may go on with the rest."""
    if not literals:
        return re.compile(r"(?!)")
    beginnings = {literal[:length] for literal in literals for length in range(1, len(literal))}
    whole = [re.escape(literal) for literal in sorted(literals, key=len, reverse=True)]
    open_end = [re.escape(beginning) + r"\Z" for beginning in sorted(beginnings, key=len, reverse=True)]
    return re.compile("|".join([*whole, *open_end]))


def _unused_guard(values: JsonObject) -> str:
    texts = list(_texts(values))
    for guard in GUARDS:
        if not any(guard in text for text in texts):
            return guard
    raise InvalidRequestError("messages: the text uses every private character there is", "messages")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in cast("JsonObject", value).items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _texts(item)


def _message_object(message: Message) -> JsonObject:
    rendered: JsonObject = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        rendered["reasoning_content"] = message.reasoning
    if message.tool_calls:
        rendered["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        rendered["name"] = message.name
    return rendered


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format_string: str) -> str:
    return datetime.now().astimezone().strftime(format_string)
