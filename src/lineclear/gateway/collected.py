"""A choice's deltas added up."""

from dataclasses import dataclass, field

from lineclear.gateway.choice import ChoiceDelta, ChoiceFinish, PlacedToken
from lineclear.gateway.fragments import Content, Part, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from lineclear.protocol.drafts import DraftCounts


@dataclass(slots=True)
class CollectedToolCall:
    """A tool call as far as it was written."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class CollectedChoice:
    """What a choice has come to. `draft` is known when it has ended."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[CollectedToolCall] = field(default_factory=list[CollectedToolCall])
    logprobs: list[PlacedToken] = field(default_factory=list[PlacedToken])
    finish_reason: ChoiceFinish | None = None
    stop_reason: str | int | None = None
    draft: DraftCounts | None = None

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta."""
        for part in delta.parts:
            self._add_part(part)
        self.logprobs += delta.logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason

    def _add_part(self, part: Part) -> None:
        match part:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case ToolCallStart(_, name):
                self.tool_calls.append(CollectedToolCall(name))
            case ToolCallArguments(call_idx, text):
                self.tool_calls[call_idx].arguments += text
            case ToolCallEnd():
                pass
