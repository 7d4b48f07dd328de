"""Workers that are far slower than the others."""

import pytest

from lineclear.routing.latency import MIN_SEQUENCES, SLOW_SECONDS_PER_TOKEN, Pace, add, is_slow


def pace(seconds_per_token: float, num_sequences: int = 2 * MIN_SEQUENCES) -> Pace:
    result = Pace()
    for _ in range(num_sequences):
        result = add(result, 10 * seconds_per_token, 10)
    return result


def test_a_pace_is_smoothed() -> None:
    assert pace(0.5).seconds_per_token == pytest.approx(0.5)
    assert add(pace(0.5), 1.5, 1).seconds_per_token == pytest.approx(0.6)
    assert add(Pace(), 3.0, 0) == Pace()


def test_a_worker_is_slow_beside_faster_ones() -> None:
    fast = [pace(0.05), pace(0.04)]
    assert is_slow(pace(1.0), fast)
    assert not is_slow(pace(0.3), fast)


def test_nobody_is_slow_alone_or_among_equals_or_before_enough_is_known() -> None:
    assert not is_slow(pace(9.0), [])
    assert not is_slow(pace(9.0), [pace(8.0)])
    assert not is_slow(pace(9.0, MIN_SEQUENCES - 1), [pace(0.01)])
    assert not is_slow(pace(9.0), [pace(0.01, MIN_SEQUENCES - 1)])
    assert not is_slow(pace(SLOW_SECONDS_PER_TOKEN / 2), [pace(0.001)])
