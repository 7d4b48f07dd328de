"""Uniforms belong to positions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lineclear.engine.uniforms import uniforms

SEEDS = st.integers(-(2**63), 2**63 - 1)
POSITIONS = st.integers(0, 2**40)


@given(SEEDS, POSITIONS, st.integers(0, 7), st.integers(1, 8))
def test_a_position_draws_the_same_numbers_wherever_the_run_starts(
    seed: int, first: int, skip: int, count: int
) -> None:
    whole = uniforms(seed, first, skip + count)
    part = uniforms(seed, first + skip, count)
    for name in ("accept", "choose", "draft"):
        assert np.array_equal(getattr(whole, name)[skip:], getattr(part, name))


@given(SEEDS, POSITIONS)
def test_the_three_numbers_of_a_position_differ_and_lie_in_the_unit_interval(seed: int, position: int) -> None:
    draws = uniforms(seed, position, 1)
    numbers = [draws.accept[0], draws.choose[0], draws.draft[0]]
    assert len(set(numbers)) == 3
    assert all(0.0 <= number < 1.0 for number in numbers)


def test_seeds_and_positions_give_unrelated_streams() -> None:
    draws = np.array([uniforms(seed, 0, 64).accept for seed in range(64)])
    assert abs(draws.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.05
    assert len(np.unique(draws)) == draws.size
