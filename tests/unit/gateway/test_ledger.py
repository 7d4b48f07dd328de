"""The ledger asserts that every request ends once."""

import pytest

from lineclear.base.errors import InvariantError
from lineclear.base.ids import RequestId
from lineclear.gateway.ledger import Ledger, Outcome

A, B = RequestId("a"), RequestId("b")


def test_requests_are_counted_by_their_ending() -> None:
    ledger = Ledger()
    ledger.open(A)
    ledger.open(B)
    ledger.end(A, Outcome.COMPLETED)
    assert ledger.num_open == 1
    ledger.end(B, Outcome.DISCONNECTED)
    statistics = ledger.statistics()
    assert (statistics.num_open, statistics.num_opened) == (0, 2)
    assert statistics.num_ended == {Outcome.COMPLETED: 1, Outcome.FAILED: 0, Outcome.DISCONNECTED: 1}
    ledger.check()


def test_a_second_ending_is_an_error() -> None:
    ledger = Ledger()
    ledger.open(A)
    ledger.end(A, Outcome.FAILED)
    with pytest.raises(InvariantError):
        ledger.end(A, Outcome.COMPLETED)


def test_a_request_is_opened_once() -> None:
    ledger = Ledger()
    ledger.open(A)
    with pytest.raises(InvariantError):
        ledger.open(A)


def test_somebody_hears_when_the_last_request_has_ended() -> None:
    heard: list[int] = []
    ledger = Ledger(lambda: heard.append(1))
    ledger.open(A)
    ledger.open(B)
    ledger.end(A, Outcome.COMPLETED)
    assert heard == []
    ledger.end(B, Outcome.COMPLETED)
    assert heard == [1]


def test_check_finds_a_request_that_vanished() -> None:
    ledger = Ledger()
    ledger.open(A)
    ledger._open.clear()
    with pytest.raises(InvariantError):
        ledger.check()
