import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.transport.movers.mover import Span
from lineclear.transport.movers.spans import SpanError, checked_runs

SIZE = 64

spans_inside = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, SIZE), st.integers(0, SIZE)).map(
        lambda drawn: Span(drawn[0], drawn[1], min(drawn[2], SIZE - max(drawn[:2])))
    ),
    max_size=12,
)


def written(spans: list[Span]) -> bytes:
    source, destination = bytes(range(SIZE)), bytearray(SIZE)
    for start, to, num_bytes in spans:
        destination[to : to + num_bytes] = source[start : start + num_bytes]
    return bytes(destination)


@given(spans_inside)
def test_runs_write_what_their_spans_write(spans: list[Span]) -> None:
    runs = [Span(*run) for run in checked_runs(spans, SIZE, SIZE).tolist()]
    assert written(runs) == written(spans)
    assert all(run.num_bytes > 0 for run in runs)


@given(spans_inside)
def test_no_two_runs_are_left_that_could_be_one(spans: list[Span]) -> None:
    runs = [Span(*run) for run in checked_runs(spans, SIZE, SIZE).tolist()]
    for first, second in itertools.pairwise(runs):
        ends = first.source + first.num_bytes, first.destination + first.num_bytes
        assert ends != (second.source, second.destination)


def test_spans_that_follow_each_other_on_both_sides_are_one_run() -> None:
    spans = [Span(0, 8, 4), Span(4, 12, 4), Span(4, 4, 0), Span(8, 16, 2), Span(10, 30, 2)]
    assert checked_runs(spans, SIZE, SIZE).tolist() == [[0, 8, 10], [10, 30, 2]]


def test_nothing_is_no_run() -> None:
    assert checked_runs([], SIZE, SIZE).shape == (0, 3)


@pytest.mark.parametrize(
    ("span", "side"),
    [
        (Span(SIZE, 0, 1), "source"),
        (Span(-1, 0, 1), "source"),
        (Span(0, 0, -1), "source"),
        (Span(SIZE + 1, 0, 0), "source"),
        (Span(2**63 - 1, 0, 2**63 - 1), "source"),
        (Span(0, 9, 1), "destination"),
        (Span(0, -1, 1), "destination"),
        (Span(0, 2**63 - 1, 1), "destination"),
    ],
)
def test_a_span_outside_is_named_with_its_side(span: Span, side: str) -> None:
    with pytest.raises(SpanError, match=rf"source={span.source}, destination={span.destination}.*the {side} of"):
        checked_runs([Span(0, 0, 1), span], SIZE, 9)


@pytest.mark.parametrize("wrong", [[(0, 0, 2**64)], [(0, 0, "a")], [(0, 0, None)], [(0, 0)], [(0, float("nan"), 0)]])
def test_what_are_no_numbers_are_no_spans(wrong: list[tuple[object, ...]]) -> None:
    with pytest.raises(SpanError):
        checked_runs(wrong, SIZE, SIZE)  # type: ignore[arg-type]


@pytest.mark.parametrize("spans", [[(1, 2, 3, 4), (5, 6)], [(1, 2)], [(1, 2, 3, 4)], [5]])
def test_spans_of_another_shape_are_refused_and_not_read_as_if_in_a_row(spans: list[Any]) -> None:
    with pytest.raises(SpanError):
        checked_runs(spans, 100, 100)
