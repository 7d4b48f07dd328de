"""The distribution that a request samples from, against straightforward definitions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lineclear.engine.distribution import adjust_logits, distribution, has_adjustments
from lineclear.protocol.sampling import SamplingParams

VOCAB = 7
ROWS = st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.floats(0.05, 2.0),
    top_k=st.one_of(st.none(), st.integers(1, 9)),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.9),
)


def naive(row: list[float], params: SamplingParams) -> list[float]:
    """The definition, token by token."""

    def normalise(weights: dict[int, float]) -> dict[int, float]:
        total = sum(weights.values())
        return {token: weight / total for token, weight in weights.items()}

    top = max(row)
    kept = normalise({token: math.exp((value - top) / params.temperature) for token, value in enumerate(row)})
    order = sorted(kept, key=lambda token: (-row[token], token))
    kept = normalise({token: kept[token] for token in order[: params.top_k]})
    if params.top_p < 1.0:
        before, nucleus = 0.0, {}
        for token in kept:
            if before >= params.top_p:
                break
            nucleus[token] = kept[token]
            before += kept[token]
        kept = normalise(nucleus)
    floor = params.min_p * max(kept.values())
    kept = normalise({token: prob for token, prob in kept.items() if prob >= floor})
    return [kept.get(token, 0.0) for token in range(len(row))]


def is_near_a_border(row: list[float], params: SamplingParams) -> bool:
    """Whether rounding may decide what a truncation keeps."""
    probs = sorted(naive(row, SamplingParams(max_tokens=1, temperature=params.temperature)), reverse=True)
    probs = probs[: params.top_k]
    probs = [prob / sum(probs) for prob in probs]
    sums = [sum(probs[:end]) for end in range(1, len(probs) + 1)]
    ratios = [prob / probs[0] for prob in probs]
    return any(abs(total - params.top_p) < 1e-9 for total in sums) or any(
        abs(ratio - params.min_p) < 1e-9 for ratio in ratios
    )


@given(st.lists(st.tuples(ROWS, PARAMS), min_size=1, max_size=4))
def test_each_row_follows_its_own_definition(rows: list[tuple[list[float], SamplingParams]]) -> None:
    probs = distribution(torch.tensor([row for row, _ in rows]), [params for _, params in rows]).tolist()
    for got, (row, params) in zip(probs, rows, strict=True):
        if not is_near_a_border(row, params):
            assert got == pytest.approx(naive(row, params), abs=1e-9)


@given(st.lists(st.tuples(ROWS, PARAMS), min_size=2, max_size=5))
def test_a_row_alone_gives_the_same_bits_when_its_company_asks_for_the_same_kind(
    rows: list[tuple[list[float], SamplingParams]],
) -> None:
    together = distribution(torch.tensor([row for row, _ in rows]), [params for _, params in rows])
    for idx, (row, params) in enumerate(rows):
        alone = distribution(torch.tensor([row]), [params])
        assert torch.equal(together[idx], alone[0])


def test_adjustments_are_seen() -> None:
    plain = SamplingParams(max_tokens=5)
    assert not has_adjustments(plain, 0)
    for changed in (
        SamplingParams(max_tokens=5, presence_penalty=0.1),
        SamplingParams(max_tokens=5, frequency_penalty=-0.1),
        SamplingParams(max_tokens=5, repetition_penalty=1.1),
        SamplingParams(max_tokens=5, logit_bias={1: 1.0}),
        SamplingParams(max_tokens=5, min_tokens=1),
    ):
        assert has_adjustments(changed, 0)
    assert not has_adjustments(SamplingParams(max_tokens=5, min_tokens=1), 1)


def test_penalties_biases_and_the_ban_on_stopping() -> None:
    row = torch.tensor([2.0, -2.0, 1.0, 0.5, 3.0, 4.0, 0.0])
    params = SamplingParams(
        max_tokens=9,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=2.0,
        logit_bias={6: 10.0},
        min_tokens=4,
    )
    adjusted = adjust_logits(row, params, prompt_token_ids=[0, 1], output_token_ids=[2, 2, 3], stop_token_ids=[5])
    # 0 and 1 were in the prompt; 2 twice and 3 once in the output; 5 may not end it yet.
    expected = [1.0, -4.0, 0.5 - 0.5 - 0.5, 0.25 - 0.25 - 0.5, 3.0, float("-inf"), 10.0]
    assert adjusted.tolist() == pytest.approx(expected)
    assert row.tolist() == [2.0, -2.0, 1.0, 0.5, 3.0, 4.0, 0.0]


def test_a_ban_on_every_likely_token_leaves_the_others() -> None:
    params = SamplingParams(max_tokens=9, min_tokens=1, top_p=0.1)
    adjusted = adjust_logits(torch.tensor([9.0, 1.0, 0.0]), params, [], [], [0])
    assert distribution(adjusted[None], [params]).tolist() == [[0.0, 1.0, 0.0]]
