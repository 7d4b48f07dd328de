"""When a client is to ask again."""

from hypothesis import given
from hypothesis import strategies as st

from lineclear.routing.retry_after import LEAST_SECONDS, MOST_SECONDS, EndRate, add_end, retry_after_seconds


def rate_of(per_second: int, seconds: int) -> EndRate:
    rate = EndRate()
    for step in range(per_second * seconds):
        rate = add_end(rate, step / per_second)
    return rate


def test_a_fast_fleet_asks_for_little_patience_and_a_slow_one_for_more() -> None:
    assert retry_after_seconds(rate_of(10, 120), 120.0, num_ahead=1) == LEAST_SECONDS
    slow = retry_after_seconds(rate_of(1, 300), 300.0, num_ahead=20)
    assert 15 <= slow <= 45
    assert retry_after_seconds(rate_of(1, 300), 300.0, num_ahead=10_000) == MOST_SECONDS


def test_a_fleet_that_has_ended_nothing_lately_says_two_seconds() -> None:
    assert retry_after_seconds(EndRate(), 0.0, num_ahead=5) == 2
    assert retry_after_seconds(rate_of(10, 60), 10_000.0, num_ahead=5) == 2


@given(st.lists(st.floats(0, 50), max_size=50), st.integers(0, 10**6))
def test_it_is_always_within_what_clients_obey(gaps: list[float], num_ahead: int) -> None:
    rate, now = EndRate(), 0.0
    for gap in gaps:
        now += gap
        rate = add_end(rate, now)
    assert LEAST_SECONDS <= retry_after_seconds(rate, now, num_ahead=num_ahead) <= MOST_SECONDS
