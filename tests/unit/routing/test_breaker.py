"""When a worker is given nothing, probes, or everything again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.routing.breaker import (
    FIRST_SHARE,
    HALF_LIFE_SECONDS,
    MAX_OPEN_FACTOR,
    Breaker,
    BreakerRules,
    BreakerState,
    Ending,
    admits,
    advance,
    begin,
    end,
    restart,
    weight,
)

RULES = BreakerRules(open_seconds=4.0, slow_start_seconds=20.0, num_probes=2)


def ended(breaker: Breaker, *endings: Ending, now: float = 0.0) -> Breaker:
    """The breaker after sequences that begin and end at once."""
    for ending in endings:
        breaker = end(begin(breaker), ending, breaker.era, now, RULES)
    return breaker


def opened(now: float = 0.0) -> Breaker:
    return ended(Breaker(), *[Ending.BAD] * 3, now=now)


def test_three_bad_endings_open_it_and_two_do_not() -> None:
    assert ended(Breaker(), Ending.BAD, Ending.BAD).state is BreakerState.CLOSED
    breaker = opened()
    assert (breaker.state, breaker.open_seconds, breaker.opened_at) == (BreakerState.OPEN, 4.0, 0.0)
    assert not admits(breaker, RULES)


def test_a_few_bad_endings_among_many_good_ones_do_not_open_it() -> None:
    breaker = Breaker()
    for _ in range(200):
        breaker = ended(breaker, *[Ending.GOOD] * 9, Ending.BAD)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.bad_share == pytest.approx(0.1)


def test_bad_endings_far_apart_do_not_open_it() -> None:
    breaker = Breaker()
    for hour in range(20):
        breaker = ended(breaker, Ending.BAD, now=3600.0 * hour)
    assert breaker.state is BreakerState.CLOSED


def test_counts_decay_by_half() -> None:
    breaker = ended(Breaker(), Ending.BAD, Ending.GOOD)
    breaker = ended(breaker, Ending.GOOD, now=HALF_LIFE_SECONDS)
    assert (breaker.num_bad, breaker.num_ended) == (0.5, 2.0)


def test_endings_that_say_nothing_count_for_nothing() -> None:
    assert ended(Breaker(), *[Ending.NEUTRAL] * 50) == Breaker()


def test_it_is_half_open_when_its_time_is_up_and_lets_probes_through() -> None:
    assert advance(opened(), 3.9).state is BreakerState.OPEN
    breaker = advance(opened(), 4.0)
    assert (breaker.state, admits(breaker, RULES)) == (BreakerState.HALF_OPEN, True)
    assert admits(begin(breaker), RULES)
    assert not admits(begin(begin(breaker)), RULES)


def test_probes_that_end_well_close_it_and_it_starts_slowly() -> None:
    breaker = begin(begin(advance(opened(), 4.0)))
    breaker = end(breaker, Ending.GOOD, breaker.era, 5.0, RULES)
    assert breaker.state is BreakerState.HALF_OPEN
    assert not admits(breaker, RULES)
    breaker = end(breaker, Ending.GOOD, breaker.era, 6.0, RULES)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.bad_share == 0
    assert weight(breaker, 6.0, RULES) == FIRST_SHARE
    assert weight(breaker, 16.0, RULES) == 0.5
    assert weight(breaker, 60.0, RULES) == 1.0


def test_a_probe_that_says_nothing_makes_room_for_another() -> None:
    breaker = begin(begin(advance(opened(), 4.0)))
    breaker = end(breaker, Ending.NEUTRAL, breaker.era, 5.0, RULES)
    assert (breaker.state, admits(breaker, RULES)) == (BreakerState.HALF_OPEN, True)


def test_each_probe_that_ends_badly_doubles_the_wait_up_to_a_bound() -> None:
    breaker, now = opened(), 0.0
    waits: list[float] = []
    for _ in range(8):
        now += breaker.open_seconds
        breaker = begin(advance(breaker, now))
        breaker = end(breaker, Ending.BAD, breaker.era, now, RULES)
        waits.append(breaker.open_seconds)
    assert waits[:3] == [8.0, 16.0, 32.0]
    assert waits[-1] == MAX_OPEN_FACTOR * RULES.open_seconds


def test_a_relapse_while_it_starts_slowly_waits_longer_and_a_later_fault_does_not() -> None:
    breaker = begin(begin(advance(opened(), 4.0)))
    for _ in range(2):
        breaker = end(breaker, Ending.GOOD, breaker.era, 5.0, RULES)
    assert ended(breaker, *[Ending.BAD] * 3, now=6.0).open_seconds == 8.0
    assert ended(breaker, *[Ending.BAD] * 3, now=600.0).open_seconds == 4.0


def test_what_began_before_a_change_changes_nothing_after_it() -> None:
    late = Breaker().era
    half_open = advance(opened(), 4.0)
    for ending in Ending:
        assert end(half_open, ending, late, 5.0, RULES) == half_open


def test_a_bad_ending_that_may_not_open_it_counts() -> None:
    breaker = Breaker()
    for _ in range(5):
        breaker = end(breaker, Ending.BAD, breaker.era, 0.0, RULES, may_open=False)
    assert (breaker.state, breaker.num_bad) == (BreakerState.CLOSED, 5.0)
    assert ended(breaker, Ending.BAD).state is BreakerState.OPEN


def test_a_worker_that_comes_back_starts_slowly_with_the_same_breaker() -> None:
    breaker = ended(Breaker(), Ending.BAD)
    back = restart(breaker, 50.0)
    assert replace(back, recovered_at=None) == breaker
    assert weight(back, 50.0, RULES) == FIRST_SHARE


def test_without_slow_start_it_gets_everything_at_once() -> None:
    rules = replace(RULES, slow_start_seconds=0.0)
    assert weight(restart(Breaker(), 50.0), 50.0, rules) == 1.0


@given(st.lists(st.tuples(st.sampled_from([*Ending]), st.floats(0, 100), st.integers(0, 3)), max_size=60))
def test_whatever_happens_it_lets_probes_through_again(events: list[tuple[Ending, float, int]]) -> None:
    breaker, now = Breaker(), 0.0
    for ending, seconds, age in events:
        now += seconds
        breaker = begin(advance(breaker, now))
        breaker = end(breaker, ending, max(0, breaker.era - age), now, RULES)
        assert 0 <= breaker.num_bad <= breaker.num_ended
        assert breaker.num_probing >= 0
        assert 0 < weight(breaker, now, RULES) <= 1
        assert breaker.open_seconds <= MAX_OPEN_FACTOR * RULES.open_seconds
    if breaker.state is BreakerState.OPEN:
        later = advance(breaker, now + MAX_OPEN_FACTOR * RULES.open_seconds)
        assert admits(later, RULES)
        for _ in range(RULES.num_probes):
            later = begin(later)
        for _ in range(RULES.num_probes):
            later = end(later, Ending.GOOD, later.era, now, RULES)
        assert later.state is BreakerState.CLOSED
