import pytest

from lineclear.protocol.drafts import DraftCounts
from lineclear.speculate.counters import accept_length, accept_rate


def test_figures_of_a_healthy_sequence() -> None:
    counts = DraftCounts()
    for num_accepted in (3, 2, 0, 3):
        counts.record(3, num_accepted)
    assert accept_length(counts) == pytest.approx(1 + 8 / 4)
    assert accept_rate(counts) == pytest.approx(8 / 12)


def test_extremes() -> None:
    none, all_of_them = DraftCounts(), DraftCounts()
    none.record(3, 0)
    all_of_them.record(3, 3)
    assert (accept_length(none), accept_rate(none)) == (1.0, 0.0)
    assert (accept_length(all_of_them), accept_rate(all_of_them)) == (4.0, 1.0)


def test_nothing_is_said_before_the_first_verify() -> None:
    assert accept_length(DraftCounts()) is None
    assert accept_rate(DraftCounts()) is None
