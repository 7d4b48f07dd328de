"""How the next token of a sequence is chosen, and what a client may ask for."""

from typing import Final

import msgspec

from lineclear.base.errors import RequestError

MAX_TEMPERATURE: Final = 2.0
MAX_PENALTY: Final = 2.0
MAX_LOGIT_BIAS: Final = 100.0
MAX_LOGPROBS: Final = 20
"""The four limits above are those of the OpenAI API, which clients already expect."""

MAX_STOP_TOKENS: Final = 256
"""Bounds the work per token; far above any tokenizer's number of end markers."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How one sequence's tokens are chosen and when it ends. Complete: nothing is filled in later."""

    max_tokens: int
    """Output tokens at most; the sequence then ends with "length"."""
    temperature: float = 1.0
    """0 is greedy: the most likely token, the lowest id among equals."""
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Go on after the model's end tokens; `stop_token_ids` still end the sequence."""
    min_tokens: int = 0
    """No end token is chosen before so many output tokens."""
    logprobs: int | None = None
    """How many of the most likely alternatives to report with each token; None reports no log-probabilities at all."""

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


def validate_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Refuse values that no request may carry.

    Raises: RequestError naming the field, the value and what is allowed.
    """
    _check_lengths(params)
    _check_filters(params)
    _check_penalties(params)
    _check_tokens(params, vocab_size)


def _check_lengths(params: SamplingParams) -> None:
    if params.max_tokens < 1:
        raise RequestError("max_tokens", params.max_tokens, "an integer of at least 1")
    if not 0 <= params.min_tokens <= params.max_tokens:
        raise RequestError("min_tokens", params.min_tokens, f"0 to max_tokens ({params.max_tokens})")


def _check_filters(params: SamplingParams) -> None:
    _check_between("temperature", params.temperature, 0.0, MAX_TEMPERATURE)
    _check_between("min_p", params.min_p, 0.0, 1.0)
    if not 0.0 < params.top_p <= 1.0:
        raise RequestError("top_p", params.top_p, "above 0, at most 1")
    if params.top_k is not None and params.top_k < 1:
        raise RequestError("top_k", params.top_k, "null or an integer of at least 1")
    if params.seed is not None and not -(2**63) <= params.seed < 2**63:
        raise RequestError("seed", params.seed, "null or a signed 64-bit integer")


def _check_penalties(params: SamplingParams) -> None:
    _check_between("presence_penalty", params.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_between("frequency_penalty", params.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    if not 0.0 < params.repetition_penalty < float("inf"):
        raise RequestError("repetition_penalty", params.repetition_penalty, "a finite number above 0")


def _check_tokens(params: SamplingParams, vocab_size: int) -> None:
    for token_id, bias in params.logit_bias.items():
        _check_token("logit_bias", token_id, vocab_size)
        _check_between("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    num_stops = len(params.stop_token_ids)
    if num_stops > MAX_STOP_TOKENS:
        raise RequestError("stop_token_ids", num_stops, f"at most {MAX_STOP_TOKENS} token ids")
    for token_id in params.stop_token_ids:
        _check_token("stop_token_ids", token_id, vocab_size)
    most = min(MAX_LOGPROBS, vocab_size)
    if params.logprobs is not None and not 0 <= params.logprobs <= most:
        raise RequestError("logprobs", params.logprobs, f"null or 0 to {most}")


def _check_token(field: str, token_id: int, vocab_size: int) -> None:
    if not 0 <= token_id < vocab_size:
        raise RequestError(field, token_id, f"token ids from 0 to {vocab_size - 1}")


def _check_between(field: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:  # also refuses what is not a number
        raise RequestError(field, value, f"{lowest:g} to {highest:g}")
