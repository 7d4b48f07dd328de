"""Splits an answer into what the model thought and what it says.

    THINKING ── </think> · <tool_call> ──▶ ANSWERING ── <think> ──▶ THINKING

A tool call ends the thinking even if the model forgot to close it. Tags that make no sense where they stand are text,
and so are those inside a call: nothing is thought in the middle of an argument.
"""

from enum import Enum, auto

from lineclear.gateway.fragments import Fragment, Marker, Reasoning, Text, literal


class _State(Enum):
    THINKING = auto()
    ANSWERING = auto()


class ReasoningSplitter:
    """The splitter of one choice.

    Args:
        starts_thinking: the prompt ends with `<think>`.
        has_tools: tool calls are looked for.
    """

    def __init__(self, *, starts_thinking: bool, has_tools: bool) -> None:
        self._state = _State.THINKING if starts_thinking else _State.ANSWERING
        self._has_tools = has_tools
        self._has_thought = False

    @property
    def is_thinking(self) -> bool:
        """Whether the next text is reasoning."""
        return self._state is _State.THINKING

    def push(self, fragment: Fragment, *, is_in_call: bool = False) -> list[Reasoning | Fragment]:
        """Reasoning, and the fragments that belong to the answer.

        Args:
            fragment: what comes next.
            is_in_call: it comes inside a tool call.
        """
        if is_in_call:
            return [fragment]
        if self._state is _State.ANSWERING:
            return self._answer(fragment)
        return self._think(fragment)

    def _answer(self, fragment: Fragment) -> list[Reasoning | Fragment]:
        if fragment is Marker.THINK_OPEN:
            self._state = _State.THINKING
            return []
        if fragment is Marker.THINK_CLOSE:
            return [Text(fragment.value)]
        return [fragment]

    def _think(self, fragment: Fragment) -> list[Reasoning | Fragment]:
        if fragment is Marker.THINK_CLOSE:
            self._state = _State.ANSWERING
            return []
        if fragment is Marker.TOOL_CALL_OPEN and self._has_tools:
            self._state = _State.ANSWERING
            return [fragment]
        if fragment is Marker.THINK_OPEN and not self._has_thought:
            return []  # some models repeat the tag that the prompt ended with
        self._has_thought = True
        return [Reasoning(literal(fragment))]
