"""The account of verdicts: bounded, and one outcome for each choice that was broken."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.ids import RequestId
from lineclear.gateway.guard_book import ChoiceHistory, GuardBook, GuardOutcome, GuardRecord
from lineclear.protocol.verdicts import Verdict
from lineclear.routing.retries import Again, GiveUp, Limit


def record(request_id: str, worker_id: str = "a", action: str = "retry", prefill_id: str = "") -> GuardRecord:
    verdict = Verdict(
        kind="collapse", detector="seed", action=action, num_tokens=5, evidence={"x": 1.0}, prefill_id=prefill_id
    )
    return GuardRecord(1.0, RequestId(request_id), 0, 1, worker_id, verdict)


def test_the_newest_come_first_and_the_oldest_are_forgotten() -> None:
    book = GuardBook(max_recent=3)
    for number in range(5):
        book.add(ChoiceHistory(), record(str(number)))
    assert [each["request_id"] for each in book.recent()] == ["4", "3", "2"]
    assert sum(book.statistics().num_verdicts.values()) == 5


def test_whoever_broke_a_choice_is_avoided() -> None:
    book, history = GuardBook(), ChoiceHistory()
    book.add(history, record("r", "a", prefill_id="p"))
    book.add(history, record("r", "b"))
    assert (history.avoid_workers, history.avoid_prefill, history.num_attempts) == ({"a", "b"}, {"p"}, 3)


def test_a_verdict_on_an_attempt_that_was_thrown_away_marks_nothing() -> None:
    book, history = GuardBook(), ChoiceHistory()
    book.add(history, record("r", action="observe"))
    book.add(history, record("r"))
    book.follow(history, Again(is_last=False), 0)
    book.finish(history)
    assert book.statistics().num_outcomes == {("collapse", GuardOutcome.RECOVERED): 1}


def test_an_answer_that_was_only_observed_has_no_outcome() -> None:
    book, history = GuardBook(), ChoiceHistory()
    book.add(history, record("r", action="observe"))
    book.finish(history)
    assert book.statistics().num_outcomes == {}
    assert [each["outcome"] for each in book.recent()] == [None]


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.sampled_from(["finish", "close", "both"])), max_size=20))
def test_each_broken_choice_has_exactly_one_outcome(choices: list[tuple[int, bool, str]]) -> None:
    book = GuardBook()
    expected: Counter[GuardOutcome] = Counter()
    for num_broken, is_given_up, ending in choices:
        history = ChoiceHistory()
        for attempt in range(num_broken):
            book.add(history, record("r", f"w{attempt}"))
            is_end = is_given_up and attempt == num_broken - 1
            book.follow(history, GiveUp(Limit.FLEET) if is_end else Again(is_last=False), 2)
        if ending != "close" and not is_given_up:
            book.finish(history)
        book.settle(history, GuardOutcome.UNFINISHED)
        finished = GuardOutcome.UNFINISHED if ending == "close" else GuardOutcome.RECOVERED
        expected[GuardOutcome.FAILED if is_given_up else finished] += 1
    counted = book.statistics()
    assert {outcome: count for (_, outcome), count in counted.num_outcomes.items()} == expected
    num_given_up = sum(is_given_up for _, is_given_up, _ in choices)
    assert sum(counted.num_given_up.values()) == num_given_up
    assert sum(counted.num_retries.values()) == sum(num for num, _, _ in choices) - num_given_up
    assert counted.num_resumed == sum(counted.num_retries.values())
