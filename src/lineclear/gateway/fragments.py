"""An answer on its way from tokens to a client: fragments in, parts out.

    tokens ─ Detokenizer ─▶ Fragment ─ ReasoningSplitter ─▶ Fragment + Reasoning ─ ToolCallParser ─▶ Part ─▶ codec
                            Text | Marker                                                Content | Reasoning | ToolCall…

A `Marker` is a tag that the model wrote as a control token. The same letters written as ordinary tokens are `Text`, so
that a file about tags can be edited. For vocabularies without such tokens `MarkerScanner` finds the tags in the text.

Law: how the text is cut into fragments never changes what the parts add up to.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Marker(Enum):
    """The tags of the chat format."""

    THINK_OPEN = "<think>"
    THINK_CLOSE = "</think>"
    TOOL_CALL_OPEN = "<tool_call>"
    TOOL_CALL_CLOSE = "</tool_call>"
    ARG_KEY_OPEN = "<arg_key>"
    ARG_KEY_CLOSE = "</arg_key>"
    ARG_VALUE_OPEN = "<arg_value>"
    ARG_VALUE_CLOSE = "</arg_value>"


@dataclass(frozen=True, slots=True)
class Text:
    """Characters without a meaning of their own."""

    text: str


Fragment: TypeAlias = Text | Marker


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call of a declared tool begins; `call_idx` counts the calls of the choice."""

    call_idx: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next characters of the call's arguments, a JSON object."""

    call_idx: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The arguments are complete."""

    call_idx: int


Part: TypeAlias = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallEnd


def literal(fragment: Fragment) -> str:
    """The characters a fragment was written with."""
    return fragment.text if isinstance(fragment, Text) else fragment.value


class MarkerScanner:
    """Finds markers in text, for vocabularies that have no tokens for them.

    Args:
        markers: the markers to look for.
    """

    def __init__(self, markers: frozenset[Marker]) -> None:
        self._marker_by_literal = {marker.value: marker for marker in markers}
        self._literals = tuple(self._marker_by_literal)
        self._held = ""

    def push(self, text: str) -> list[Fragment]:
        """The fragments that are certain now; the beginning of a possible marker is held back."""
        if not self._literals:
            return [Text(text)] if text else []
        text, fragments = self._held + text, list[Fragment]()
        while found := self._first_marker(text):
            start, marker = found
            if start:
                fragments.append(Text(text[:start]))
            fragments.append(marker)
            text = text[start + len(marker.value) :]
        num_held = held_len(text, self._literals)
        self._held = text[len(text) - num_held :]
        if len(text) > num_held:
            fragments.append(Text(text[: len(text) - num_held]))
        return fragments

    def flush(self) -> list[Fragment]:
        """What was held back, now that no more text can follow it."""
        held, self._held = self._held, ""
        return [Text(held)] if held else []

    def _first_marker(self, text: str) -> tuple[int, Marker] | None:
        found = [
            (start, marker) for marker in self._marker_by_literal.values() if (start := text.find(marker.value)) >= 0
        ]
        return min(found, key=lambda item: item[0], default=None)


def held_len(text: str, literals: tuple[str, ...]) -> int:
    """The length of the longest end of the text that is the beginning, but not the whole, of one of the literals."""
    longest = max((len(item) for item in literals), default=1) - 1
    for start in range(max(0, len(text) - longest), len(text)):
        end = text[start:]
        if any(len(end) < len(item) and item.startswith(end) for item in literals):
            return len(end)
    return 0
