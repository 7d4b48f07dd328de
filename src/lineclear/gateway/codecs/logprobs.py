"""Log-probabilities in the shapes of OpenAI's two APIs."""

from collections.abc import Sequence
from typing import Any

from lineclear.gateway.choice import PlacedToken
from lineclear.gateway.vocabulary import Vocabulary

LOWEST_LOGPROB = -9999.0
"""What OpenAI reports for a token that is all but impossible; JSON has no infinity."""


def chat_logprobs(vocabulary: Vocabulary, tokens: Sequence[PlacedToken]) -> dict[str, Any]:
    """The `logprobs` object of a chat choice."""
    return {
        "content": [
            _entry(vocabulary, token.token_id, token.logprob)
            | {"top_logprobs": [_entry(vocabulary, token_id, logprob) for token_id, logprob in token.top]}
            for token in (placed.logprobs for placed in tokens)
        ],
        "refusal": None,
    }


def completion_logprobs(vocabulary: Vocabulary, tokens: Sequence[PlacedToken]) -> dict[str, Any]:
    """The `logprobs` object of a plain completion."""
    logprobs = [placed.logprobs for placed in tokens]
    return {
        "tokens": [token_text(vocabulary, token.token_id) for token in logprobs],
        "token_logprobs": [_finite(token.logprob) for token in logprobs],
        "top_logprobs": [
            {token_text(vocabulary, token_id): _finite(logprob) for token_id, logprob in token.top}
            for token in logprobs
        ],
        "text_offset": [placed.start for placed in tokens],
    }


def token_text(vocabulary: Vocabulary, token_id: int) -> str:
    """A token on its own: its bytes are escaped where they are no characters."""
    return vocabulary.token_bytes(token_id).decode(errors="backslashreplace")


def _entry(vocabulary: Vocabulary, token_id: int, logprob: float) -> dict[str, Any]:
    token_bytes = vocabulary.token_bytes(token_id)
    return {"token": token_text(vocabulary, token_id), "logprob": _finite(logprob), "bytes": list(token_bytes)}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
