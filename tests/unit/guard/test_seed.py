"""The `seed` detector on the published cases: what it catches, and what it is known to miss."""

from array import array

import pytest

from lineclear.guard.seed import MIN_TOKENS, PERSISTENCE, WINDOW, SeedDetector
from tests.unit.guard.streams import Stream, findings, stream

HEALTHY = (0.951, 0.842 / 0.951, 0.700 / 0.842)
CORRUPTED = (0.050, 0.04, 0.0)


def test_the_published_collapse_is_found_and_the_healthy_run_is_not() -> None:
    assert [kind for kind, _ in findings(SeedDetector(), stream(HEALTHY, 2000))] == []
    ((kind, num_tokens),) = findings(SeedDetector(), stream(CORRUPTED, 400))
    assert kind == "collapse"
    assert MIN_TOKENS < num_tokens < MIN_TOKENS + 2 * (WINDOW + PERSISTENCE)


@pytest.mark.parametrize("accept_length", [1.46, 1.589])
def test_collapses_above_its_limit_are_missed(accept_length: float) -> None:
    share = accept_length - 1.0
    pattern = Stream.of_lengths(accept_length, 2000, num_drafts=3)
    assert 1.0 + sum(each.num_accepted for each in pattern.verifies) / len(pattern.verifies) == pytest.approx(
        1.0 + share, abs=0.01
    )
    assert findings(SeedDetector(), pattern) == []


def test_a_loop_below_its_limit_is_missed() -> None:
    assert findings(SeedDetector(), Stream.looping(0.845, 2000, num_drafts=8)) == []


def test_a_faithful_copy_is_taken_for_a_loop() -> None:
    ((kind, _),) = findings(SeedDetector(), Stream.copying(600, num_drafts=3))
    assert kind == "loop"


def test_it_finds_nothing_before_it_has_seen_enough() -> None:
    detector = SeedDetector()
    short = Stream.of_lengths(1.0, MIN_TOKENS, num_drafts=3)
    assert findings(detector, short) == []
    assert detector.level == 0.0
    assert detector.judge(short.verifies[0]._replace(num_proposed=0), array("I"), 0) is None
