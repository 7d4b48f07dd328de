"""The judge of what clients see: it has to find what is wrong."""

import pytest

from tests.e2e.histories import History, Kind, Verdict, judge

EXPECTED = ["a", "b", "c"]


def _history(*events: Kind | str) -> History:
    """Words are tokens."""
    history = History(0)
    for event in events:
        if isinstance(event, Kind):
            history.note(event)
        else:
            history.note(Kind.TOKENS, list(event))
    return history


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ((Kind.SENT, "ab", "c", Kind.FINISHED, Kind.DONE, Kind.CLOSED), Verdict.RIGHT),
        ((Kind.SENT, "ab", Kind.ERROR, Kind.CUT), Verdict.FAILED),
        ((Kind.SENT, Kind.CUT), Verdict.FAILED),
        ((Kind.SENT, Kind.REFUSED), Verdict.REFUSED),
        ((Kind.SENT, "a", Kind.LEFT), Verdict.LEFT),
        ((Kind.SENT, "abx", Kind.FINISHED, Kind.DONE, Kind.CLOSED), Verdict.WRONG),
        (
            (Kind.SENT, "ab", Kind.FINISHED, Kind.DONE, Kind.CLOSED),
            Verdict.WRONG,
        ),  # too short, and ends as if it were not
        ((Kind.SENT, "abcd", Kind.FINISHED, Kind.DONE, Kind.CLOSED), Verdict.WRONG),
        ((Kind.SENT, "x", Kind.ERROR, Kind.CUT), Verdict.WRONG),  # failed, after a wrong token
        ((Kind.SENT, "x", Kind.LEFT), Verdict.WRONG),
        ((Kind.SENT, "abc", Kind.DONE, Kind.CLOSED), Verdict.UNCLEAR),
        ((Kind.SENT, "abc", Kind.CLOSED), Verdict.UNCLEAR),
        ((Kind.SENT, "ab", Kind.ERROR, Kind.CLOSED), Verdict.UNCLEAR),  # an error that looks like an end
        ((Kind.SENT, "abc", Kind.FINISHED, Kind.FINISHED, Kind.DONE, Kind.CLOSED), Verdict.UNCLEAR),
        ((Kind.SENT, "abc", Kind.FINISHED, Kind.DONE, "a", Kind.CLOSED), Verdict.UNCLEAR),
        ((Kind.SENT, "abc", Kind.FINISHED, Kind.ERROR, Kind.CUT), Verdict.UNCLEAR),
        ((Kind.SENT,), Verdict.UNCLEAR),
    ],
)
def test_a_history_is_judged_by_its_events_and_its_tokens(events: tuple[Kind | str, ...], verdict: Verdict) -> None:
    assert judge(_history(*events), EXPECTED) is verdict
