"""Requests folded from events."""

import pytest

from lineclear.base.errors import TraceError
from lineclear.trace.events import Arrived, Cancelled, Ended, FirstByte, TokensSent
from lineclear.trace.requests import fold_requests


def arrived(name: str, at_s: float = 0.0) -> Arrived:
    return Arrived(at_s=at_s, request=name, prompt_len=8)


def test_each_request_has_its_own_events() -> None:
    told = [
        arrived("a"),
        arrived("b", 1),
        FirstByte(at_s=2, request="b"),
        TokensSent(at_s=2, request="a", count=3),
        TokensSent(at_s=3, request="a", count=2),
        Cancelled(at_s=4, request="b", output_len=1),
    ]
    cancelled, unfinished = fold_requests(told)
    assert (cancelled.arrived.request, cancelled.first_byte_s, cancelled.output_len, cancelled.ended_s) == (
        "b",
        2,
        1,
        4,
    )
    assert (unfinished.arrived.request, unfinished.end, unfinished.output_len) == ("a", None, 5)


def test_an_id_twice_and_an_event_of_nobody_are_refused() -> None:
    with pytest.raises(TraceError, match=r"line 4: request: got 'a'"):
        list(fold_requests([arrived("a"), Ended(request="a", output_len=0), arrived("a")]))
    with pytest.raises(TraceError, match=r"line 2: request: got 'x'"):
        list(fold_requests([FirstByte(at_s=0, request="x")]))
