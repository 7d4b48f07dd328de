"""What a request cost, and how its drafts fared."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lineclear.gateway.collected import CollectedChoice
from lineclear.protocol.drafts import DraftCounts
from lineclear.speculate.counters import accept_length, accept_rate


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of a request.

    A prompt counts once, however many choices it has. The token that ends a choice counts, though
    it has no text.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    num_reasoning_tokens: int

    def openai(self) -> dict[str, Any]:
        """The `usage` object of OpenAI's APIs."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.num_reasoning_tokens},
        }

    def anthropic(self) -> dict[str, Any]:
        """The `usage` object of Anthropic's API, where the tokens of a prompt are those that were not cached."""
        return {
            "input_tokens": self.num_prompt_tokens - self.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.num_cached_tokens,
            "output_tokens": self.num_completion_tokens,
            "output_tokens_details": {"thinking_tokens": self.num_reasoning_tokens},
        }

    def responses(self) -> dict[str, Any]:
        """The `usage` object of OpenAI's Responses API."""
        return {
            "input_tokens": self.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self.num_completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.num_reasoning_tokens},
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
        }


def draft_figures(counts: DraftCounts | None) -> dict[str, Any]:
    """The draft figures of one choice, as clients that ask for them get them."""
    counts = counts or DraftCounts()
    return {
        "num_verifies": counts.num_verifies,
        "proposed_by_position": counts.proposed_by_position,
        "accepted_by_position": counts.accepted_by_position,
        "accept_length": accept_length(counts),
        "accept_rate": accept_rate(counts),
    }


def guard_marks(choices: Sequence[CollectedChoice]) -> dict[str, Any]:
    """What is added to an answer of which the guard judged a choice; nothing if it judged none."""
    marks = [
        {
            "index": idx,
            "judged": mark.judged,
            "kind": mark.kind,
            "detector": mark.detector,
            "num_tokens": mark.num_tokens,
            "num_attempts": mark.num_attempts,
        }
        for idx, choice in enumerate(choices)
        if (mark := choice.mark) is not None
    ]
    return {"guard": marks} if marks else {}
