import math
from typing import Any

import msgspec
import pytest

from lineclear.base.errors import RequestError
from lineclear.protocol.sampling import SamplingParams, validate_sampling

VOCAB_SIZE = 100


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 10, **changes})


def test_temperature_zero_is_greedy() -> None:
    assert params(temperature=0.0).is_greedy
    assert not params(temperature=0.1).is_greedy
    assert not params().is_greedy


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_tokens": 1, "min_tokens": 1},
        {"temperature": 0.0},
        {"temperature": 2.0, "top_p": 1e-9, "min_p": 1.0, "top_k": 1},
        {"top_p": 1.0, "min_p": 0.0, "top_k": None},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 1e-3},
        {"logit_bias": {0: -100.0, 99: 100.0}},
        {"stop_token_ids": (0, 99)},
        {"logprobs": 0},
        {"logprobs": 20},
    ],
)
def test_what_is_allowed_passes(changes: dict[str, Any]) -> None:
    validate_sampling(params(**changes), VOCAB_SIZE)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"min_tokens": -1}),
        ("min_tokens", {"min_tokens": 11}),
        ("temperature", {"temperature": -0.1}),
        ("temperature", {"temperature": 2.1}),
        ("temperature", {"temperature": math.nan}),
        ("top_p", {"top_p": 0.0}),
        ("top_p", {"top_p": 1.1}),
        ("top_p", {"top_p": math.nan}),
        ("top_k", {"top_k": 0}),
        ("min_p", {"min_p": -0.1}),
        ("min_p", {"min_p": 1.1}),
        ("seed", {"seed": 2**63}),
        ("presence_penalty", {"presence_penalty": 2.1}),
        ("presence_penalty", {"presence_penalty": math.nan}),
        ("frequency_penalty", {"frequency_penalty": -2.1}),
        ("repetition_penalty", {"repetition_penalty": 0.0}),
        ("repetition_penalty", {"repetition_penalty": math.inf}),
        ("logit_bias", {"logit_bias": {100: 1.0}}),
        ("logit_bias", {"logit_bias": {-1: 1.0}}),
        ("logit_bias", {"logit_bias": {5: 100.5}}),
        ("stop_token_ids", {"stop_token_ids": (100,)}),
        ("stop_token_ids", {"stop_token_ids": (1,) * 257}),
        ("logprobs", {"logprobs": -1}),
        ("logprobs", {"logprobs": 21}),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        validate_sampling(params(**changes), VOCAB_SIZE)
    assert caught.value.field == field


def test_alternatives_are_limited_by_a_small_vocabulary() -> None:
    with pytest.raises(RequestError):
        validate_sampling(params(logprobs=6), vocab_size=5)


def test_a_misspelt_field_is_not_ignored() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"max_tokens": 3, "temprature": 0.5}, SamplingParams)
