"""A choice's deltas added up: blocks in the order in which the model wrote them."""

from dataclasses import dataclass, field
from typing import TypeAlias

from lineclear.base.errors import InvariantError
from lineclear.gateway.choice import ChoiceDelta, ChoiceFinish, PlacedToken
from lineclear.gateway.fragments import Content, Part, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.verdicts import VerdictKind


class Pieces(list[str]):
    """A text in the pieces in which it came: a long one comes in very many. How it was cut makes no difference."""

    def __eq__(self, other: object) -> bool:
        """Whether the texts are the same."""
        return isinstance(other, Pieces) and str(self) == str(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as of any list

    def __str__(self) -> str:
        """The whole text."""
        return "".join(self)


@dataclass(slots=True)
class CollectedText:
    """A run of text of the answer itself."""

    pieces: Pieces

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self.pieces)


@dataclass(slots=True)
class CollectedReasoning:
    """A run of text that the model thought."""

    pieces: Pieces

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self.pieces)


@dataclass(slots=True)
class CollectedToolCall:
    """A tool call as far as it was written; `is_complete` once its arguments are a JSON object."""

    name: str
    pieces: Pieces = field(default_factory=Pieces)
    is_complete: bool = False

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return str(self.pieces)


@dataclass(frozen=True, slots=True)
class GuardMark:
    """An answer that the guard judged and that is returned all the same.

    `is_model_own`: so were its attempts elsewhere, `num_attempts` in all; else nothing is done about such answers here.
    """

    kind: VerdictKind
    detector: str
    num_tokens: int
    num_attempts: int
    is_model_own: bool

    @property
    def judged(self) -> str:
        """The word for it."""
        return "model_own" if self.is_model_own else "observed"


Block: TypeAlias = CollectedText | CollectedReasoning | CollectedToolCall


@dataclass(slots=True)
class CollectedChoice:
    """What a choice has come to. `draft` and `mark` are known when it has ended."""

    blocks: list[Block] = field(default_factory=list[Block])
    logprobs: list[PlacedToken] = field(default_factory=list[PlacedToken])
    finish_reason: ChoiceFinish | None = None
    stop_reason: str | int | None = None
    draft: DraftCounts | None = None
    mark: GuardMark | None = None

    @property
    def content(self) -> str:
        """All text of the answer itself."""
        return "".join(block.text for block in self.blocks if isinstance(block, CollectedText))

    @property
    def reasoning(self) -> str:
        """All that the model thought."""
        return "".join(block.text for block in self.blocks if isinstance(block, CollectedReasoning))

    @property
    def tool_calls(self) -> list[CollectedToolCall]:
        """The calls."""
        return [block for block in self.blocks if isinstance(block, CollectedToolCall)]

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta."""
        for part in delta.parts:
            self._add_part(part)
        self.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason

    def _add_part(self, part: Part) -> None:
        last = self.blocks[-1] if self.blocks else None
        match part, last:
            case (Content(text), CollectedText()) | (Reasoning(text), CollectedReasoning()):
                last.pieces.append(text)
            case ToolCallArguments(_, text), CollectedToolCall():
                last.pieces.append(text)
            case ToolCallEnd(), CollectedToolCall():
                last.is_complete = True
            case Content(text), _:
                self.blocks.append(CollectedText(Pieces([text])))
            case Reasoning(text), _:
                self.blocks.append(CollectedReasoning(Pieces([text])))
            case ToolCallStart(_, name), _:
                self.blocks.append(CollectedToolCall(name))
            case ((ToolCallArguments() | ToolCallEnd()), _):
                raise InvariantError(f"{part} belongs to no call that is open")
