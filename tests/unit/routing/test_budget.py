"""Retries are at most a share of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.routing.budget import RetryBudget


@given(st.floats(0, 1), st.integers(0, 20), st.lists(st.booleans(), max_size=300))
def test_retries_are_at_most_a_share_of_the_requests_and_the_burst(
    share: float, burst: int, are_retries: list[bool]
) -> None:
    budget = RetryBudget(share, burst)
    for is_retry in are_retries:
        if is_retry:
            budget.try_take()
        else:
            budget.add_request()
        counts = budget.statistics()
        assert counts.num_taken <= share * counts.num_requests + burst + 1e-6
        assert counts.num_taken + counts.num_refused + counts.num_requests <= len(are_retries)
        assert 0 <= counts.num_left <= burst


def test_a_fleet_that_breaks_everything_is_asked_for_little_more() -> None:
    budget = RetryBudget(0.1, 5)
    for _ in range(1000):
        budget.add_request()
        while budget.try_take():
            pass
    counts = budget.statistics()
    assert counts.num_taken == pytest.approx(0.1 * 1000 + 5, abs=1)
    assert counts.num_refused == 1000


def test_what_is_saved_up_is_bounded() -> None:
    budget = RetryBudget(1.0, 3)
    for _ in range(100):
        budget.add_request()
    assert [budget.try_take() for _ in range(5)] == [True, True, True, False, False]
