"""From a body's fields to `SamplingParams`: defaults, clamping and refusals."""

from typing import TypeVar

import msgspec

from lineclear.base.errors import RequestError
from lineclear.gateway.codecs.body import GenerationBody, SamplingBody
from lineclear.gateway.errors import PromptTooLongError, invalid_request, refuse
from lineclear.gateway.served_model import ServedModel
from lineclear.protocol.sampling import SamplingParams, validate_sampling

MAX_CHOICES = 128
"""OpenAI's limit of `n`."""

_SEED_MODULUS = 2**63

T = TypeVar("T")


def count_choices(body: GenerationBody) -> int:
    """The number of choices that are asked for.

    Raises:
        InvalidRequestError: It is not an allowed number.
    """
    num_choices = 1 if body.n is None else body.n
    if not 1 <= num_choices <= MAX_CHOICES:
        raise refuse("n", num_choices, f"1 to {MAX_CHOICES}")
    return num_choices


def refuse_continuous_usage(body: GenerationBody) -> None:
    """Refuse usage in every chunk.

    Raises:
        InvalidRequestError: It is asked for.
    """
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        field = "stream_options.continuous_usage_stats"
        raise refuse(field, True, "false: usage comes once, after the answer", "unserved_field")


def refuse_hopeless(text: str, model: ServedModel, prompt_param: str) -> None:
    """Refuse a prompt that is too long, however it is tokenized, before that takes memory many times its length.

    Raises:
        PromptTooLongError: It has more tokens than fit.
    """
    num_tokens = model.assets.tokenization.fewest_tokens(text)
    if num_tokens > model.max_prompt_len:
        raise PromptTooLongError(num_tokens, model.max_prompt_len, prompt_param, is_floor=True)


def refuse_too_long(num_prompt_tokens: int, model: ServedModel, prompt_param: str) -> None:
    """Refuse a prompt that is too long.

    Raises:
        PromptTooLongError: It leaves no room for one token.
    """
    if num_prompt_tokens > model.max_prompt_len:
        raise PromptTooLongError(num_prompt_tokens, model.max_prompt_len, prompt_param)


def build_sampling(
    body: SamplingBody,
    model: ServedModel,
    *,
    num_prompt_tokens: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_param: str,
) -> SamplingParams:
    """The sampling of a request's first choice.

    More output than fits is cut to what fits: clients ask for a generous maximum, and shorten their prompts when they
    are told that those are too long, but do not know what to do about the sum.

    Raises:
        InvalidRequestError: A value is not allowed.
        PromptTooLongError: The prompt leaves no room for one token.
    """
    refuse_too_long(num_prompt_tokens, model, prompt_param)
    num_left = model.max_sequence_len - num_prompt_tokens
    defaults = model.assets.defaults
    try:
        params = SamplingParams(
            max_tokens=num_left if max_tokens is None else min(max_tokens, num_left),
            temperature=_first(body.temperature, defaults.temperature, 1.0),
            top_p=_first(body.top_p, defaults.top_p, 1.0),
            top_k=_top_k(_first(body.top_k, defaults.top_k, 0)),
            min_p=_first(body.min_p, defaults.min_p, 0.0),
            seed=body.seed,
            presence_penalty=_first(body.presence_penalty, 0.0),
            frequency_penalty=_first(body.frequency_penalty, 0.0),
            repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
            logit_bias=body.logit_bias or {},
            stop_token_ids=tuple(body.stop_token_ids or ()),
            ignore_eos=bool(body.ignore_eos),
            min_tokens=_first(body.min_tokens, 0),
            logprobs=logprobs,
        )
        validate_sampling(params, model.vocab_size)
    except RequestError as error:
        raise invalid_request(error) from None
    return params


def vary_seed(params: SamplingParams, choice_idx: int) -> SamplingParams:
    """The sampling of another choice: with a seed given, each choice has its own, found from it."""
    if params.seed is None or choice_idx == 0:
        return params
    return msgspec.structs.replace(params, seed=(params.seed + choice_idx) % _SEED_MODULUS)


def _top_k(top_k: int) -> int | None:
    """Other servers say 0 or -1 for "all"."""
    return None if top_k in {0, -1} else top_k


def _first(*values: T | None) -> T:
    """The first value that was given; the last always is."""
    return next(value for value in values if value is not None)
