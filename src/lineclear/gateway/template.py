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
from itertools import islice
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lineclear.base.errors import CheckpointError
from lineclear.gateway.conversation import Conversation, JsonObject, Message
from lineclear.gateway.errors import InvalidRequestError, refuse
from lineclear.gateway.fragments import Marker

GUARDS = (*map(chr, range(0xFDD0, 0xFDF0)), *map(chr, range(0xF0000, 0xF1000)))
"""Candidates for the guard: noncharacters and private characters, which real text has no use for."""

_GUARD_PATTERN = re.compile(f"[{re.escape(''.join(GUARDS))}]")

MAX_VALUES = 1_000_000
"""Texts, numbers, lists and objects of one request: each takes a microsecond of work. A prompt of a million tokens has
fewer."""

LARGE_CHARACTERS = 1024 * 1024
"""From here on it pays to look whether a conversation is too long before its literals are broken."""

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
        self._literals = _literals_pattern(control_literals)
        self._beginnings = {literal[:length] for literal in control_literals for length in range(1, len(literal))}
        self._longest_beginning = max(map(len, self._beginnings), default=0)

    def preview(self, conversation: Conversation) -> str | None:
        """What a large conversation is rendered to, literals not broken; `None` for one that is not large.

        Much cheaper than `render`: for finding out whether that is worth its while.

        Raises:
            InvalidRequestError: The template refuses the messages.
        """
        values = _values(conversation)
        if sum(map(len, _read_texts(values, conversation.param))) < LARGE_CHARACTERS:
            return None
        return self._render(values, conversation, guard="")

    def render(self, conversation: Conversation) -> Rendered:
        """Render a conversation.

        Raises:
            InvalidRequestError: The template refuses the messages.
        """
        values = _values(conversation)
        texts = _read_texts(values, conversation.param)
        guard = _unused_guard([*texts, conversation.continuation, conversation.opened_call], conversation.param)
        guarded = cast("JsonObject", self._break_literals(values, guard))
        rendered = Rendered(self._render(guarded, conversation, guard), guard)
        if not conversation.continuation and not conversation.opened_call:
            return rendered
        return self._begin_answer(rendered, conversation)

    def _begin_answer(self, rendered: Rendered, conversation: Conversation) -> Rendered:
        """The answer begins with what is written here; nothing is thought before it."""
        guard = rendered.guard
        text = rendered.text + (Marker.THINK_CLOSE.value if rendered.ends_with(Marker.THINK_OPEN.value) else "")
        text += self._break_text(conversation.continuation, guard)
        if conversation.opened_call:
            text += Marker.TOOL_CALL_OPEN.value + self._break_text(conversation.opened_call, guard)
        return Rendered(text, guard)

    def _render(self, values: JsonObject, conversation: Conversation, guard: str) -> str:
        try:
            return self._template.render(
                **self._variables, **values, add_generation_prompt=conversation.add_generation_prompt
            )
        except _RENDER_ERRORS as error:
            message = str(error).replace(guard, "")
            param = conversation.param
            raise InvalidRequestError(
                f"{param}: the model's chat template cannot show them ({message})", param
            ) from None

    def _break_literals(self, value: object, guard: str) -> object:
        if isinstance(value, str):
            return self._break_text(value, guard)
        if isinstance(value, dict):
            items = cast("JsonObject", value).items()
            return {self._break_literals(key, guard): self._break_literals(item, guard) for key, item in items}
        if isinstance(value, list):
            return [self._break_literals(item, guard) for item in cast("list[Any]", value)]
        return value

    def _break_text(self, text: str, guard: str) -> str:
        """Break whole literals, and the beginning of one where the text ends: the template may go on with the rest."""
        for start in range(max(0, len(text) - self._longest_beginning), len(text)):
            if text[start:] in self._beginnings:
                text = text[: start + 1] + guard + text[start + 1 :]
                break
        return self._literals.sub(lambda match: match[0][0] + guard + match[0][1:], text)


def _values(conversation: Conversation) -> JsonObject:
    return {
        "messages": [_message_object(message) for message in conversation.messages],
        "tools": [tool.rendered for tool in conversation.tools] or None,
        **conversation.template_variables,
    }


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        autoescape=False,
    )
    environment.filters["tojson"] = _to_json
    return environment


def _literals_pattern(literals: tuple[str, ...]) -> re.Pattern[str]:
    if not literals:
        return re.compile(r"(?!)")
    return re.compile("|".join(re.escape(literal) for literal in sorted(literals, key=len, reverse=True)))


def _unused_guard(texts: list[str], param: str) -> str:
    used = {guard for text in texts if not text.isascii() for guard in _GUARD_PATTERN.findall(text)}
    for guard in GUARDS:
        if guard not in used:
            return guard
    raise InvalidRequestError(f"{param}: the text uses every private character there is", param)


def _read_texts(values: JsonObject, param: str) -> list[str]:
    texts = list(islice(_texts(values), MAX_VALUES + 1))
    if len(texts) > MAX_VALUES:
        raise refuse(param, "too many values, tools and variables included", f"at most {MAX_VALUES}")
    return texts


def _texts(value: object) -> Iterator[str]:
    """The text of every key and value; what is no text is an empty one."""
    yield value if isinstance(value, str) else ""
    if isinstance(value, dict):
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
