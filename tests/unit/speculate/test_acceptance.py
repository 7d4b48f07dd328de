"""The acceptance rule, and the proof by exact enumeration over fractions that it keeps the target's distribution."""

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from math import lcm
from typing import Any

import numpy as np
import pytest

from lineclear.base.errors import InvariantError
from lineclear.speculate.acceptance import draw, verify_greedy, verify_sampled


@pytest.mark.parametrize(
    ("choices", "drafts", "expected"),
    [
        ([4], [], (0, 4)),
        ([4, 5, 6], [4, 5], (2, 6)),
        ([4, 5, 6], [4, 9], (1, 5)),
        ([4, 5, 6], [9, 5], (0, 4)),
    ],
)
def test_greedy_keeps_what_the_target_chose(choices: Any, drafts: Any, expected: Any) -> None:
    assert verify_greedy(choices, drafts) == expected


def test_greedy_wants_one_row_more_than_drafts() -> None:
    with pytest.raises(InvariantError, match="2 drafts and 2 target rows"):
        verify_greedy([1, 2], [1, 2])


def row(*parts: int) -> list[Fraction]:
    return [Fraction(part, sum(parts)) for part in parts]


# A model of both kinds: the next token's distribution after each context, a tuple of the tokens so far.
TARGETS = {
    "close": {(): row(3, 2, 1), (0,): row(1, 1, 1), (1,): row(4, 1, 1), (2,): row(1, 0, 2)},
    "peaked": {(): row(1, 0, 0), (0,): row(0, 0, 1), (1,): row(1, 1, 0), (2,): row(0, 1, 3)},
    "flat": {(): row(1, 1, 1), (0,): row(1, 1, 1), (1,): row(1, 1, 1), (2,): row(1, 1, 1)},
}
DRAFTERS = {
    "good": {(): row(2, 1, 1), (0,): row(1, 2, 1), (1,): row(2, 1, 1), (2,): row(1, 1, 2)},
    "greedy": {(): row(0, 1, 0), (0,): row(1, 0, 0), (1,): row(0, 0, 1), (2,): row(0, 1, 0)},
    "opposite": {(): row(0, 0, 1), (0,): row(1, 1, 0), (1,): row(0, 1, 1), (2,): row(1, 0, 0)},
}


def target_row(target: Any, context: Any) -> list[Fraction]:
    # Contexts beyond the table look at their last token only.
    return target[context[-1:]]


def midpoints(resolution: int) -> list[Fraction]:
    """Uniforms that stand for [0, 1) exactly, as long as every threshold is a multiple of 1 / resolution."""
    return [Fraction(2 * index + 1, 2 * resolution) for index in range(resolution)]


def output_distribution(target: Any, drafter: Any, num_drafts: int) -> dict[tuple[int, ...], Fraction]:
    """Enumerate all drafts and all uniforms; sum the probability of each emitted run of tokens."""
    distribution = defaultdict(Fraction)
    for drafts in product(range(3), repeat=num_drafts):
        contexts = [drafts[:length] for length in range(num_drafts + 1)]
        target_rows = [target_row(target, context) for context in contexts]
        draft_rows = [target_row(drafter, context) for context in contexts[:-1]]
        weight = Fraction(1)
        for position, draft in enumerate(drafts):
            weight *= draft_rows[position][draft]
        if weight == 0:
            continue
        grids = [midpoints(resolution_of(p, q)) for p, q in zip(target_rows, draft_rows, strict=False)]
        final_grid = midpoints(final_resolution(target_rows, draft_rows))
        for *uniforms, final in product(*grids, final_grid):
            num_accepted, token_id = verify_sampled(target_rows, draft_rows, drafts, uniforms, final)
            share = weight / len(final_grid)
            for grid in grids:
                share /= len(grid)
            distribution[(*drafts[:num_accepted], token_id)] += share
    return distribution


def resolution_of(target: Any, draft: Any) -> int:
    return lcm(*(min(Fraction(1), p / q).denominator for p, q in zip(target, draft, strict=True) if q))


def final_resolution(target_rows: Any, draft_rows: Any) -> int:
    rows = [*target_rows]
    rows += [
        [max(p - q, Fraction(0)) for p, q in zip(*pair, strict=True)]
        for pair in zip(target_rows, draft_rows, strict=False)
    ]
    denominators = [1]
    for weights in rows:
        total, running = sum(weights), Fraction(0)
        for weight in weights:
            running += weight
            denominators.append((running / total).denominator if total else 1)
    return lcm(*denominators)


def distribution_of_prefix(distribution: Any, length: int, target: Any) -> dict[tuple[int, ...], Fraction]:
    """Return the law of the first `length` tokens, runs that are shorter being continued by the target itself."""
    result = defaultdict(Fraction)
    pending = list(distribution.items())
    while pending:
        tokens, probability = pending.pop()
        if len(tokens) >= length:
            result[tokens[:length]] += probability
            continue
        for token_id, p in enumerate(target_row(target, tokens)):
            if p:
                pending.append(((*tokens, token_id), probability * p))
    return {tokens: probability for tokens, probability in result.items() if probability}


def target_distribution(target: Any, length: int) -> dict[tuple[int, ...], Fraction]:
    return distribution_of_prefix({(): Fraction(1)}, length, target)


@pytest.mark.parametrize("num_drafts", [0, 1, 2])
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_what_comes_out_is_distributed_as_the_target(target: Any, drafter: Any, num_drafts: int) -> None:
    distribution = output_distribution(target, drafter, num_drafts)
    assert sum(distribution.values()) == 1
    length = num_drafts + 1
    assert distribution_of_prefix(distribution, length, target) == target_distribution(target, length)


def test_the_proof_would_notice_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: to draw from the target after a rejection is a known mistake."""
    monkeypatch.setattr("lineclear.speculate.acceptance._draw_residual", lambda p, _, u: draw(p, u))
    target = TARGETS["close"]
    distribution = output_distribution(target, DRAFTERS["good"], 1)
    assert distribution_of_prefix(distribution, 2, target) != target_distribution(target, 2)


def test_equal_distributions_accept_everything() -> None:
    rows = [row(1, 2, 1)] * 3
    for uniform in midpoints(16):
        assert verify_sampled(rows, rows[:2], [1, 2], [uniform] * 2, Fraction(1, 8)) == (2, 0)


def test_a_draft_the_target_excludes_is_rejected_even_by_the_lowest_uniform() -> None:
    assert verify_sampled([row(0, 1, 1), row(1, 1, 1)], [row(1, 1, 1)], [0], [0], Fraction(1, 4)) == (0, 1)


def test_arrays_and_lists_agree() -> None:
    generator = np.random.default_rng(5)
    for _ in range(300):
        target = generator.dirichlet(np.full(7, 0.4), size=4)
        drafts = generator.dirichlet(np.full(7, 0.4), size=3)
        token_ids = [int(generator.choice(7, p=drafts[position])) for position in range(3)]
        uniforms, final = generator.random(3).tolist(), float(generator.random())
        from_arrays = verify_sampled(target, drafts, token_ids, uniforms, final)
        assert from_arrays == verify_sampled(target.tolist(), drafts.tolist(), token_ids, uniforms, final)
        assert [type(part) for part in from_arrays] == [int, int]


def test_a_wide_vocabulary_in_single_precision() -> None:
    target = np.zeros((2, 155_000), dtype=np.float32)
    draft = np.zeros((1, 155_000), dtype=np.float32)
    target[0, [3, 150_000]] = 0.5
    target[1, 154_999] = 1.0
    draft[0, 3] = 1.0
    assert verify_sampled(target, draft, [3], [0.49], 0.5) == (1, 154_999)
    assert verify_sampled(target, draft, [3], [0.51], 0.5) == (0, 150_000)


@pytest.mark.parametrize("make", [list, np.array], ids=["list", "array"])
@pytest.mark.parametrize(
    ("weights", "uniform", "expected"),
    [
        ([0.0, 1.0, 0.0], 0.0, 1),
        ([0.0, 1.0, 0.0], 0.999999, 1),
        ([0.25, 0.0, 0.75], 0.24, 0),
        ([0.25, 0.0, 0.75], 0.25, 2),
        ([1.0, 3.0], 0.25, 1),
        ([0.5, 0.5, 0.0], 1.0, 1),
    ],
)
def test_a_token_without_weight_is_never_drawn(
    make: Callable[[Any], Any], weights: list[float], uniform: float, expected: Any
) -> None:
    assert draw(make(weights), uniform) == expected


@pytest.mark.parametrize("make", [list, np.array], ids=["list", "array"])
def test_nothing_can_be_drawn_from_nothing(make: Callable[[Any], Any]) -> None:
    with pytest.raises(InvariantError, match="no token has weight"):
        draw(make([0.0, 0.0]), 0.5)


@pytest.mark.parametrize("make", [list, np.array], ids=["list", "array"])
def test_a_rejection_by_rounding_falls_back_to_the_target(make: Callable[[Any], Any]) -> None:
    # The row is too small to accept this uniform though both rows are the same: only rounding does that.
    rows = make([[0.5, 0.5]])
    assert verify_sampled([rows[0], rows[0]], rows, [0], [1.0], 0.75) == (0, 1)
