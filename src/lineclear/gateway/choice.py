"""One choice of an answer, put together from a sequence's tokens.

Driven by whoever reads the worker's outputs: `push` for each `SequenceOutput`, until a delta has a `finish_reason`.
What follows is ignored.

Invariants:
1. Exactly one delta has a `finish_reason`, and it is the last that says anything.
2. Nothing of a stop string, and nothing after one, is in any delta.
3. Log-probabilities come in the order of the tokens, one entry for each token whose text is sent or has none; a token
   waits while its text does.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lineclear.gateway.conversation import ToolDefinition
from lineclear.gateway.detokenize import Detokenizer
from lineclear.gateway.errors import GenerationError
from lineclear.gateway.fragments import (
    Content,
    Fragment,
    Marker,
    MarkerScanner,
    Part,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    literal,
)
from lineclear.gateway.reasoning import ReasoningSplitter
from lineclear.gateway.stop_strings import StopStrings
from lineclear.gateway.tool_calls import ToolCallParser
from lineclear.gateway.vocabulary import ControlToken, Vocabulary
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.wire import SequenceOutput, TokenLogprobs

ChoiceFinish: TypeAlias = Literal["stop", "length", "tool_calls"]

_TAGS = frozenset(marker.value for marker in Marker)
_THINK_MARKERS = frozenset({Marker.THINK_OPEN, Marker.THINK_CLOSE})


@dataclass(frozen=True, kw_only=True)
class AnswerFormat:
    """How a choice's tokens are read.

    `interprets_tags` is off for plain completions, whose text is shown as it is. Without `tools` no call is looked for.
    With `single_call` the first complete call ends the choice. `opened_call` is the tool whose call the prompt ends in.
    """

    stop_strings: tuple[str, ...] = ()
    min_tokens: int = 0
    skip_special_tokens: bool = True
    interprets_tags: bool = False
    starts_thinking: bool = False
    tools: tuple[ToolDefinition, ...] = ()
    single_call: bool = False
    opened_call: str = ""


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token's log-probabilities, and where its text lies among the characters of the choice: `[start, end)`.

    A hidden token has no text, and neither has one that ends inside a character.
    """

    logprobs: TokenLogprobs
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What one output adds to a choice.

    `stop_reason` is the stop string or the token that ended it; `num_cached_tokens` of the prompt were found in the
    prefix cache, as far as the worker has said.
    """

    parts: list[Part] = field(default_factory=list[Part])
    logprobs: list[PlacedToken] = field(default_factory=list[PlacedToken])
    finish_reason: ChoiceFinish | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0


class ChoiceAssembler:
    """Turns the outputs of one sequence into deltas of one choice."""

    def __init__(self, vocabulary: Vocabulary, answer_format: AnswerFormat) -> None:
        self._vocabulary = vocabulary
        self._format = answer_format
        self._marker_by_id, scanned = _markers(vocabulary, answer_format)
        self._detokenizer = Detokenizer(vocabulary)
        self._scanner = MarkerScanner(scanned)
        self._splitter = ReasoningSplitter(
            starts_thinking=answer_format.starts_thinking, has_tools=bool(answer_format.tools)
        )
        self._tool_calls = ToolCallParser(answer_format.tools)
        self._begun: list[Part] = []
        if answer_format.opened_call:
            self._begun = self._tool_calls.begin(answer_format.opened_call)
        self._stop_strings = StopStrings(answer_format.stop_strings)
        self._pending: deque[PlacedToken] = deque()
        self._num_characters = 0
        self._num_parsed = 0
        self._visible_end = 0
        self._finish: ChoiceFinish | None = None
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.num_cached_tokens = 0
        self.draft: DraftCounts | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the choice has its ending."""
        return self._finish is not None

    @property
    def tool_calls(self) -> ToolCallParser:
        """The parser, for its counts."""
        return self._tool_calls

    def push(self, output: SequenceOutput) -> ChoiceDelta:
        """What the client learns from this output.

        Raises:
            GenerationError: The worker ended the sequence without an answer.
        """
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self.draft = output.draft or self.draft
        if self._finish is not None:
            return ChoiceDelta()
        parts, self._begun = self._begun, []
        stop_reason = self._push_tokens(output, parts)
        if self._finish is None and output.finish_reason is not None:
            stop_reason = self._end(output, parts)
        logprobs = self._release_logprobs()
        return ChoiceDelta(_merged(parts), logprobs, self._finish, stop_reason, self.num_cached_tokens)

    def _push_tokens(self, output: SequenceOutput, parts: list[Part]) -> str | None:
        logprobs: Sequence[TokenLogprobs | None] = output.logprobs or [None] * len(output.token_ids)
        for token_id, token_logprobs in zip(output.token_ids, logprobs, strict=True):
            self.num_tokens += 1
            self.num_reasoning_tokens += self._format.interprets_tags and self._splitter.is_thinking
            start = self._num_characters
            fragments = self._read_token(token_id)
            if token_logprobs is not None:
                self._pending.append(PlacedToken(token_logprobs, start, self._num_characters))
            self._parse(fragments, parts)
            if self._finish is not None:
                return self._stop_strings.found
        return None

    def _read_token(self, token_id: int) -> list[Fragment]:
        control = self._vocabulary.control_tokens.get(token_id)
        marker = self._marker_by_id.get(token_id)
        if control is None or (marker is None and not self._is_hidden(control)):
            return self._read_text(self._detokenizer.push(token_id))
        fragments = [*self._read_text(self._detokenizer.flush()), *self._scanner.flush()]
        if marker is not None:
            self._num_characters += len(marker.value)
            fragments.append(marker)
        return fragments

    def _is_hidden(self, control: ControlToken) -> bool:
        """Tags mean something to whoever reads the text; roles and ends do not."""
        return self._format.skip_special_tokens and control.is_special and control.literal not in _TAGS

    def _read_text(self, text: str) -> list[Fragment]:
        self._num_characters += len(text)
        return self._scanner.push(text)

    def _parse(self, fragments: list[Fragment], parts: list[Part]) -> None:
        for fragment in fragments:
            self._num_parsed += len(literal(fragment))
            for part in self._interpret(fragment):
                self._emit(part, parts)
                if self._finish is not None:
                    return
            self._visible_end = self._num_parsed - self._tool_calls.num_held - self._stop_strings.num_held

    def _interpret(self, fragment: Fragment) -> list[Part]:
        parts: list[Part] = []
        for piece in self._splitter.push(fragment, is_in_call=self._tool_calls.is_in_call):
            if isinstance(piece, Reasoning):
                parts.append(piece)
            elif self._format.tools:
                parts += self._tool_calls.push(piece)
            else:
                parts.append(Content(literal(piece)))
        return parts

    def _emit(self, part: Part, parts: list[Part]) -> None:
        if isinstance(part, Content):
            self._emit_content(part.text, parts)
            return
        if rest := self._stop_strings.flush():
            parts.append(Content(rest))
        parts.append(part)
        if isinstance(part, ToolCallEnd) and self._format.single_call:
            self._finish = "tool_calls"
            self._visible_end = self._num_parsed

    def _emit_content(self, text: str, parts: list[Part]) -> None:
        if self.num_tokens <= self._format.min_tokens:
            parts.append(Content(text))
            return
        num_held = self._stop_strings.num_held
        visible = self._stop_strings.push(text)
        if visible:
            parts.append(Content(visible))
        if self._stop_strings.found is not None:
            num_dropped = num_held + len(text) - len(visible)
            self._visible_end = self._num_parsed - self._tool_calls.num_held - num_dropped
            self._finish = "stop"

    def _end(self, output: SequenceOutput, parts: list[Part]) -> str | int | None:
        if output.finish_reason in {"error", "cancelled", "broken"}:
            message = f"the worker ended the request: {output.error or output.finish_reason}"
            raise GenerationError(message, None, "generation_failed")
        is_cut = output.finish_reason == "length"
        self._parse([*self._read_text(self._detokenizer.flush()), *self._scanner.flush()], parts)
        for part in [] if self._finish else self._tool_calls.finish(is_cut=is_cut):
            self._emit(part, parts)
        if self._finish is not None:
            return self._stop_strings.found
        if rest := self._stop_strings.flush():
            parts.append(Content(rest))
        self._visible_end = self._num_parsed
        self._finish = "length" if is_cut else self._own_ending()
        self.num_tokens += output.stop_token_id is not None
        return output.stop_token_id

    def _own_ending(self) -> ChoiceFinish:
        calls = self._tool_calls
        return "tool_calls" if calls.num_started and calls.num_complete == calls.num_started else "stop"

    def _release_logprobs(self) -> list[PlacedToken]:
        if self._finish is not None:
            released = [
                token for token in self._pending if token.start < self._visible_end or not self._stop_strings.found
            ]
            self._pending.clear()
            return released
        released: list[PlacedToken] = []
        while self._pending and self._is_visible(self._pending[0]):
            released.append(self._pending.popleft())
        return released

    def _is_visible(self, token: PlacedToken) -> bool:
        is_partial = self._detokenizer.has_partial_character and token.start == self._num_characters
        return token.end <= self._visible_end and not is_partial


def _markers(vocabulary: Vocabulary, answer_format: AnswerFormat) -> tuple[dict[int, Marker], frozenset[Marker]]:
    """The markers by token id, and those that have no token and are looked for in the text."""
    if not answer_format.interprets_tags:
        return {}, frozenset()
    wanted = frozenset(Marker) if answer_format.tools else _THINK_MARKERS
    by_id = {token_id: marker for marker in wanted if (token_id := vocabulary.control_id(marker.value)) is not None}
    return by_id, wanted - frozenset(by_id.values())


def _merged(parts: list[Part]) -> list[Part]:
    """Neighbouring texts of one kind, and of one call's arguments, as one."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        match last, part:
            case Content(first), Content(second):
                merged[-1] = Content(first + second)
            case Reasoning(first), Reasoning(second):
                merged[-1] = Reasoning(first + second)
            case ToolCallArguments(call_idx, first), ToolCallArguments(_, second):
                merged[-1] = ToolCallArguments(call_idx, first + second)
            case _:
                merged.append(part)
    return merged
