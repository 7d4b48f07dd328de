"""What becomes of a broken choice: bounded attempts, and each limit by its name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.routing.retries import Again, BrokenChoice, GiveUp, Limit, RetryRules, decide

RULES = RetryRules(max_attempts=3, max_tokens=100, max_seconds=10.0)


def broken(**changes: object) -> BrokenChoice:
    fields = {"action": "retry", "num_attempts": 1, "num_lost_tokens": 40, "seconds": 1.0, "has_sent": False}
    return BrokenChoice(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"action": "fail"}, Limit.ACTION),
        ({"has_sent": True}, Limit.SENT),
        ({"num_attempts": 3}, Limit.ATTEMPTS),
        ({"num_lost_tokens": 101}, Limit.TOKENS),
        ({"seconds": 10.1}, Limit.SECONDS),
    ],
)
def test_each_limit_ends_the_request_and_takes_no_retry_of_the_fleet(changes: dict[str, object], limit: Limit) -> None:
    taken: list[int] = []
    assert decide(broken(**changes), RULES, lambda: not taken.append(1)) == GiveUp(limit)
    assert not taken


def test_at_each_limit_there_is_still_another_attempt() -> None:
    at_limits = broken(num_attempts=2, num_lost_tokens=100, seconds=10.0)
    assert decide(at_limits, RULES, lambda: True) == Again(is_last=True)
    assert decide(broken(), RULES, lambda: True) == Again(is_last=False)


def test_a_fleet_without_retries_gives_none() -> None:
    assert decide(broken(), RULES, lambda: False) == GiveUp(Limit.FLEET)


def test_what_was_sent_is_continued_where_that_is_asked_for() -> None:
    rules = RetryRules(resumes=True)
    assert decide(broken(has_sent=True), rules, lambda: True) == Again(is_last=False)


@given(
    max_attempts=st.integers(1, 10),
    lost=st.lists(st.integers(0, 60), min_size=12, max_size=12),
    budget=st.integers(0, 12),
    action=st.sampled_from(["retry", "fail"]),
)
def test_a_choice_that_is_broken_each_time_ends(max_attempts: int, lost: list[int], budget: int, action: str) -> None:
    rules = RetryRules(max_attempts=max_attempts, max_tokens=100)
    num_taken, num_lost = 0, 0

    def try_take() -> bool:
        nonlocal num_taken
        has_room = num_taken < budget
        num_taken += has_room
        return has_room

    for num_attempts, num_tokens in enumerate(lost, start=1):
        num_lost += num_tokens
        state = broken(action=action, num_attempts=num_attempts, num_lost_tokens=num_lost)
        decision = decide(state, rules, try_take)
        if isinstance(decision, GiveUp):
            assert num_taken == num_attempts - 1
            return
        assert num_taken == num_attempts
        assert num_attempts < max_attempts
        assert decision.is_last == (num_attempts + 1 == max_attempts)
    pytest.fail("it is begun again for ever")
