import pytest

from lineclear.transport.movers.mover import Span
from lineclear.transport.movers.spans import SpanError, checked_runs


def runs(*spans: Span) -> list[list[int]]:
    return checked_runs(spans, 100, 200).tolist()


def test_spans_adjacent_on_both_sides_are_one_run() -> None:
    assert runs(Span(0, 10, 5), Span(5, 15, 5), Span(10, 20, 1)) == [[0, 10, 11]]


def test_spans_adjacent_on_one_side_stay_apart() -> None:
    assert runs(Span(0, 10, 5), Span(5, 16, 5)) == [[0, 10, 5], [5, 16, 5]]
    assert runs(Span(0, 10, 5), Span(6, 15, 5)) == [[0, 10, 5], [6, 15, 5]]


def test_empty_spans_are_left_out_and_do_not_part_their_neighbours() -> None:
    assert runs() == []
    assert runs(Span(3, 3, 0)) == []
    assert runs(Span(0, 10, 5), Span(77, 77, 0), Span(5, 15, 5)) == [[0, 10, 10]]


def test_the_order_is_kept() -> None:
    assert runs(Span(50, 0, 1), Span(0, 50, 1)) == [[50, 0, 1], [0, 50, 1]]


@pytest.mark.parametrize("span", [Span(0, 0, 100), Span(100, 200, 0), Span(0, 199, 1), Span(99, 0, 1)])
def test_the_last_byte_is_inside(span: Span) -> None:
    runs(span)


@pytest.mark.parametrize(
    ("span", "side"),
    [
        (Span(1, 0, 100), "source of 100"),
        (Span(0, 101, 100), "destination of 200"),
        (Span(-1, 0, 1), "source"),
        (Span(0, -1, 1), "destination"),
        (Span(0, 0, -1), "source"),
        (Span(101, 0, 0), "source"),
        (Span(2**63 - 1, 0, 2**63 - 1), "source"),
    ],
)
def test_a_span_outside_is_named(span: Span, side: str) -> None:
    with pytest.raises(SpanError, match=side) as caught:
        runs(Span(0, 0, 1), span)
    assert str(span) in str(caught.value)


@pytest.mark.parametrize("spans", [[(0, 0, 2**64)], [("a", 0, 1)], [(0, 0)], [None]])
def test_what_is_no_span_is_refused(spans: list[Span]) -> None:
    with pytest.raises(SpanError, match="no byte offsets"):
        checked_runs(spans, 100, 200)
