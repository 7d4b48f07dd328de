"""How a step's tokens are divided among prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.schedule.shares import SHORTEST_CHUNK_SHARE_OF_COPIES, Prefill, share_budget

CHEAP = 10**18


def share(
    budget: int, *prefills: tuple[int, int], double_cost_len: int = CHEAP, max_batch_tokens: int = 0
) -> list[int]:
    return share_budget(
        budget,
        [Prefill(num_left, context_len) for num_left, context_len in prefills],
        max_batch_tokens=max_batch_tokens or budget,
        double_cost_len=double_cost_len,
    )


@pytest.mark.parametrize(
    ("prefills", "shares"),
    [
        ([], []),
        ([(1000, 0)], [64]),
        ([(1000, 0), (10, 0)], [54, 10]),
        ([(1000, 0), (1000, 0)], [32, 32]),
        ([(10, 0), (1000, 0)], [10, 54]),
        ([(1000, 0), (900, 0), (20, 0), (5, 0)], [32, 7, 20, 5]),
    ],
)
def test_half_for_the_oldest_and_half_for_who_needs_least(prefills: list[tuple[int, int]], shares: list[int]) -> None:
    assert share(64, *prefills) == shares


def test_where_each_step_brings_the_context_chunks_stay_half_a_budget_long() -> None:
    shares = share_budget(
        2048,
        [Prefill(10**6, 10**6), Prefill(10**6, 0)],
        max_batch_tokens=2048,
        double_cost_len=3072,
        shortest_chunk_share=SHORTEST_CHUNK_SHARE_OF_COPIES,
    )
    assert shares == [1024, 1024]


def test_far_into_a_prompt_chunks_get_shorter_but_not_tiny() -> None:
    lens = [share(2048, (10**6, context), double_cost_len=3072)[0] for context in (0, 4096, 12_288, 10**9)]
    assert lens == [2048, 1024, 512, 64]


def test_without_budget_nobody_gets_anything() -> None:
    assert share(0, (5, 0), (5, 0)) == [0, 0]
    assert share(-3, (5, 0)) == [0]


@given(
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 10_000)), min_size=1, max_size=6),
    st.integers(1, 1000),
    st.integers(0, 100),
)
def test_shares_fit_the_budget_and_the_oldest_goes_on(
    budget: int, prefills: list[tuple[int, int]], double_cost_len: int, num_reserved: int
) -> None:
    shares = share(budget, *prefills, double_cost_len=double_cost_len, max_batch_tokens=budget + num_reserved)
    assert sum(shares) <= budget
    assert shares[0] >= 1
    assert all(0 <= num_tokens <= num_left for num_tokens, (num_left, _) in zip(shares, prefills, strict=True))
    if double_cost_len > 900 and all(context == 0 for _, context in prefills):
        assert sum(shares) >= min(budget, sum(num_left for num_left, _ in prefills)) - len(prefills) * 16
