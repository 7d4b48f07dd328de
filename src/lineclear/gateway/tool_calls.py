"""Tool calls in GLM's format, parsed as they are written.

    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value> … </tool_call>

    CONTENT ─ <tool_call> ─▶ NAME ─ <arg_key> ─▶ KEY ─ </arg_key> ─▶ AFTER_KEY ─ <arg_value> ─▶ VALUE
     ▲  ▲  ▲                  │ │                 ▲                                              │ </arg_value>
     │  │  └── </tool_call> ──┤ │ not declared    └────────────── <arg_key> ───────────── AFTER_VALUE
     │  └ </tool_call> ─ VERBATIM ◀─┘                                                            │
     └────────────────────────────────────── </tool_call> ───────────────────────────────────────┘

Invariants:
1. A name is sent once, whole, and only if the tool is declared. Anything else is text, tags and all.
2. A call that is complete has arguments that are a JSON object.
3. A call that is cut off has arguments that are not valid JSON: nobody can take it for a complete one.
4. How the text is cut into fragments changes neither calls nor text.
5. Whitespace beside a call belongs to the format and is dropped.

What models get wrong and still mean clearly is repaired and counted in `num_repaired`: stray or missing tags.
"""

import json
from enum import Enum, auto

from lineclear.gateway.conversation import ToolDefinition
from lineclear.gateway.fragments import (
    Content,
    Fragment,
    Marker,
    Part,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    literal,
)
from lineclear.gateway.tool_schema import ToolSchema


class _State(Enum):
    CONTENT = auto()
    NAME = auto()
    KEY = auto()
    AFTER_KEY = auto()
    VALUE = auto()
    AFTER_VALUE = auto()
    VERBATIM = auto()


class ToolCallParser:
    """The parser of one choice.

    Args:
        tools: the declared tools.
    """

    def __init__(self, tools: tuple[ToolDefinition, ...]) -> None:
        self._schemas = {tool.name: ToolSchema(tool) for tool in tools}
        self._state = _State.CONTENT
        self._whitespace = ""
        self._is_after_call = False
        self._raw = ""
        self._name = ""
        self._key = ""
        self._value = ""
        self._keys: set[str] = set()
        self._streams_value = False
        self._is_duplicate = False
        self._call_idx = -1
        self.num_complete = 0
        self.num_repaired = 0
        self.num_refused = 0

    @property
    def num_started(self) -> int:
        """Calls whose name was sent."""
        return self._call_idx + 1

    @property
    def num_held(self) -> int:
        """Characters that may still turn out to be text."""
        return len(self._raw if self._state is _State.NAME else self._whitespace)

    @property
    def is_in_call(self) -> bool:
        """Whether the next text belongs to a call, or may."""
        return self._state not in {_State.CONTENT, _State.VERBATIM}

    def begin(self, name: str) -> list[Part]:
        """The answer goes on inside a call of a declared tool, of which nothing but the name is written yet."""
        parts = self._start_call(name)
        self._state = _State.AFTER_VALUE
        return parts

    def push(self, fragment: Fragment) -> list[Part]:  # noqa: PLR0911 - one state, one answer
        """The parts that are certain after this fragment."""
        match self._state:
            case _State.CONTENT:
                return self._push_content(fragment)
            case _State.NAME:
                return self._push_name(fragment)
            case _State.KEY:
                return self._push_key(fragment)
            case _State.AFTER_KEY:
                return self._push_after_key(fragment)
            case _State.VALUE:
                return self._push_value(fragment)
            case _State.AFTER_VALUE:
                return self._push_after_value(fragment)
            case _State.VERBATIM:
                return self._push_verbatim(fragment)

    def finish(self, *, is_cut: bool) -> list[Part]:
        """End the answer.

        Args:
            is_cut: the answer ended because of its length, not because the model ended it.
        """
        state, self._state = self._state, _State.CONTENT
        if state is _State.CONTENT:
            return self._flush_whitespace()
        if state is _State.NAME:
            self.num_refused += 1
            return [Content(self._raw)]
        if state is _State.AFTER_VALUE and not is_cut:
            self.num_repaired += 1
            return self._end_call()
        return []

    def _push_content(self, fragment: Fragment) -> list[Part]:
        if fragment is Marker.TOOL_CALL_OPEN:
            self._open_call()
            return []
        text = self._whitespace + literal(fragment)
        if self._is_after_call:
            text = text.lstrip()
            self._is_after_call = not text
        visible = text.rstrip()
        self._whitespace = text[len(visible) :]
        return [Content(visible)] if visible else []

    def _flush_whitespace(self) -> list[Part]:
        whitespace, self._whitespace = self._whitespace, ""
        return [Content(whitespace)] if whitespace else []

    def _open_call(self) -> None:
        self._state = _State.NAME
        self._raw = self._whitespace + Marker.TOOL_CALL_OPEN.value
        self._name = self._whitespace = ""

    def _push_name(self, fragment: Fragment) -> list[Part]:  # noqa: PLR0911 - one fragment, one answer
        self._raw += literal(fragment)
        name = self._name.strip()
        match fragment:
            case Text(text):
                self._name += text
                return [] if self._may_become_declared() else self._refuse_call(is_closed=False)
            case Marker.ARG_KEY_OPEN if name in self._schemas:
                return self._start_call(name)
            case Marker.TOOL_CALL_CLOSE if name in self._schemas:
                return [*self._start_call(name), *self._end_call()]
            case Marker.ARG_KEY_CLOSE if (declared := self._declared_prefix()) is not None:
                self.num_repaired += 1
                key = self._name.strip()[len(declared) :]
                return [*self._start_call(declared), *self._end_key(key)]
            case Marker.ARG_VALUE_OPEN | Marker.ARG_VALUE_CLOSE:
                self.num_repaired += 1
                return []
            case Marker.TOOL_CALL_OPEN:
                return self._restart_call()
            case _:
                return self._refuse_call(is_closed=fragment is Marker.TOOL_CALL_CLOSE)

    def _may_become_declared(self) -> bool:
        name = self._name.lstrip()
        return any(declared.startswith(name) or name.startswith(declared) for declared in self._schemas)

    def _declared_prefix(self) -> str | None:
        """The longest declared name that the text begins with, where the tag between name and key is missing."""
        name = self._name.strip()
        names = [declared for declared in self._schemas if name.startswith(declared) and len(declared) < len(name)]
        return max(names, key=len, default=None)

    def _start_call(self, name: str) -> list[Part]:
        self._call_idx += 1
        self._state = _State.KEY
        self._name, self._key, self._keys = name, "", set()
        return [ToolCallStart(self._call_idx, name), self._arguments("{")]

    def _restart_call(self) -> list[Part]:
        self.num_refused += 1
        refused = self._raw.removesuffix(Marker.TOOL_CALL_OPEN.value)
        self._is_after_call = False
        self._open_call()
        return [Content(refused)]

    def _refuse_call(self, *, is_closed: bool) -> list[Part]:
        self.num_refused += 1
        self._state = _State.CONTENT if is_closed else _State.VERBATIM
        self._is_after_call = False
        return [Content(self._raw)]

    def _push_verbatim(self, fragment: Fragment) -> list[Part]:
        if fragment is Marker.TOOL_CALL_OPEN:
            self._open_call()
            return []
        if fragment is Marker.TOOL_CALL_CLOSE:
            self._state = _State.CONTENT
        return [Content(literal(fragment))]

    def _push_key(self, fragment: Fragment) -> list[Part]:
        match fragment:
            case Text(text):
                self._key += text
            case Marker.ARG_KEY_CLOSE:
                return self._end_key(self._key)
            case Marker.ARG_VALUE_OPEN:
                self.num_repaired += 1
                return [*self._end_key(self._key), *self._start_value()]
            case Marker.TOOL_CALL_CLOSE:
                self.num_repaired += 1
                return self._end_call()
            case _:
                self.num_repaired += 1
        return []

    def _end_key(self, key: str) -> list[Part]:
        self._key = key.strip()
        self._state = _State.AFTER_KEY
        return []

    def _push_after_key(self, fragment: Fragment) -> list[Part]:
        if fragment is Marker.ARG_VALUE_OPEN:
            return self._start_value()
        if isinstance(fragment, Text) and fragment.text.isspace():
            return []
        self.num_repaired += 1
        return self._end_call() if fragment is Marker.TOOL_CALL_CLOSE else []

    def _start_value(self) -> list[Part]:
        self._state = _State.VALUE
        self._value = ""
        self._is_duplicate = self._key in self._keys
        self._streams_value = self._schemas[self._name].is_string(self._key)
        if self._is_duplicate:
            self.num_repaired += 1
            return []
        separator = ", " if self._keys else ""
        self._keys.add(self._key)
        opening = '"' if self._streams_value else ""
        return [self._arguments(f"{separator}{_quoted(self._key)}: {opening}")]

    def _push_value(self, fragment: Fragment) -> list[Part]:
        if fragment is Marker.ARG_VALUE_CLOSE:
            return self._end_value()
        if fragment is Marker.TOOL_CALL_CLOSE:
            self.num_repaired += 1
            return [*self._end_value(), *self._end_call()]
        if self._streams_value and not self._is_duplicate:
            return [self._arguments(_quoted(literal(fragment))[1:-1])]
        self._value += literal(fragment)
        return []

    def _end_value(self) -> list[Part]:
        self._state = _State.AFTER_VALUE
        if self._is_duplicate:
            return []
        if self._streams_value:
            return [self._arguments('"')]
        return [self._arguments(self._schemas[self._name].to_json(self._key, self._value))]

    def _push_after_value(self, fragment: Fragment) -> list[Part]:
        match fragment:
            case Marker.ARG_KEY_OPEN:
                self._state, self._key = _State.KEY, ""
            case Marker.TOOL_CALL_CLOSE:
                return self._end_call()
            case Marker.TOOL_CALL_OPEN:
                self.num_repaired += 1
                ended = self._end_call()
                self._open_call()
                return ended
            case Text(text) if text.isspace():
                pass
            case _:
                self.num_repaired += 1
        return []

    def _end_call(self) -> list[Part]:
        self._state = _State.CONTENT
        self._is_after_call = True
        self.num_complete += 1
        return [self._arguments("}"), ToolCallEnd(self._call_idx)]

    def _arguments(self, text: str) -> ToolCallArguments:
        return ToolCallArguments(self._call_idx, text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
