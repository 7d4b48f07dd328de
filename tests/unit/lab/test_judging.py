"""What is a tie, what is corruption, and whose text it is."""

import pytest

from lineclear.lab.judging import Answer, Judgement, Outcome, Reference, ReferenceToken, judge, margin_at
from lineclear.lab.symptoms import Donors, find_garbling, find_loop

PROMPT = "rename the variable alpha of this short file to beta"
TOKENS = (
    ReferenceToken("the ", -0.1, (("the ", -0.1), ("a ", -3.0))),
    ReferenceToken("value", -0.69, (("value", -0.69), ("name", -0.70), ("na", -0.9))),
    ReferenceToken(" of", -0.2, ((" of", -0.2), (" is", -4.0), ("", -0.21))),
)
REFERENCE = Reference("the value of", TOKENS)
OTHER = "while every caller keeps its own socket open until the last reader leaves the pool"


def judged(text: str, **known: str) -> Judgement:
    donors = Donors({"mine": PROMPT + REFERENCE.text, "theirs": OTHER})
    return judge(Answer("mine", PROMPT, text, **known), REFERENCE, donors)


def test_the_same_text_is_the_same() -> None:
    assert judged("the value of").outcome is Outcome.SAME


def test_a_rival_that_was_as_likely_is_a_tie_and_its_margin_is_shown() -> None:
    found = judged("the name is")
    assert (found.outcome, found.differs_at) == (Outcome.TIE, 4)
    assert found.margin == pytest.approx(0.01)
    assert not found.is_anomaly


def test_the_longest_rival_that_fits_is_the_token() -> None:
    assert margin_at("the nation", REFERENCE, 4) == pytest.approx(0.21)


def test_a_rival_that_was_less_likely_is_corruption() -> None:
    found = judged("a value of")
    assert (found.outcome, found.differs_at) == (Outcome.CORRUPTION, 0)
    assert found.margin == pytest.approx(2.9)


def test_what_no_rival_is_is_corruption_without_a_margin() -> None:
    found = judged("the zebra of")
    assert (found.outcome, found.margin) == (Outcome.CORRUPTION, None)


def test_an_answer_that_ends_where_the_end_was_as_likely_is_a_tie() -> None:
    found = judged("the value")
    assert found.outcome is Outcome.TIE
    assert found.margin == pytest.approx(0.01)


def test_an_answer_that_goes_on_has_not_chosen_the_end_however_likely_that_was() -> None:
    found = judged("the value zebra")
    assert (found.outcome, found.margin) == (Outcome.CORRUPTION, None)


def test_without_rivals_nothing_is_a_tie() -> None:
    answer = Answer("mine", PROMPT, "the name of")
    assert judge(answer, Reference("the value of"), Donors({})).outcome is Outcome.CORRUPTION


def test_an_error_is_honest_and_a_request_without_reference_is_not_compared() -> None:
    assert judged("", error="503").outcome is Outcome.FAILED
    assert judge(Answer("mine", PROMPT, "x"), None, Donors({})).outcome is Outcome.UNCOMPARED


def test_the_known_answer_is_compared_as_well() -> None:
    assert judged("the value of", known_answer=" the value of\n").is_right is True
    assert judged("the name is", known_answer="the value of").is_right is False
    assert judged("the value of").is_right is None


def test_text_of_another_request_is_named_with_its_donor_even_behind_a_tie() -> None:
    found = judged("the name keeps its own socket open until the last")
    assert found.outcome is Outcome.CORRUPTION
    assert found.foreign is not None
    assert (found.foreign.donor_id, found.foreign.excerpt) == ("theirs", "keeps its own socket")


def test_words_that_several_requests_share_name_nobody() -> None:
    donors = Donors({"a": OTHER, "b": OTHER, "c": "nothing of it"})
    assert donors.find("c", OTHER, "nothing of it") is None


def test_words_that_the_turns_of_one_conversation_share_name_its_first() -> None:
    donors = Donors({"a": "nothing of it", "t1": OTHER, "t2": OTHER}, {"t1": "t1", "t2": "t1"})
    found = donors.find("a", OTHER, "nothing of it")
    assert found is not None
    assert found.donor_id == "t1"


def test_what_the_next_turn_repeats_is_not_foreign_to_the_turn_that_said_it() -> None:
    donors = Donors({"t1": "nothing of it", "t2": OTHER}, {"t1": "t1", "t2": "t1"})
    assert donors.find("t1", OTHER, "nothing of it") is None


def test_own_words_are_not_foreign() -> None:
    assert Donors({"a": OTHER, "b": "x"}).find("b", OTHER, OTHER) is None


@pytest.mark.parametrize(
    ("text", "legitimate", "is_garbled"),
    [
        ("x = 1\n", "x = 2", False),
        ("x = \ufffd", "x = 2", True),
        ("x = \x00", "x = 2", True),
        ("x = 数据库", "x = 2", True),
        ("x = 数据库", "名字", False),
        ("naïve café", "plain", False),
    ],
)
def test_garbling_is_what_neither_prompt_nor_reference_could_have(text: str, legitimate: str, is_garbled: bool) -> None:
    assert (find_garbling(text, legitimate) is not None) == is_garbled


@pytest.mark.parametrize(
    ("text", "legitimate", "unit"),
    [
        ("start " + "again and " * 10, "", " again and"),
        ("0" * 80, "a table of " + "0" * 80, None),
        ("0" * 80, "", "0"),
        ("once upon a time there was a model that never said a word twice in all of its long life", "", None),
    ],
)
def test_loops_are_found_unless_the_reference_has_them(text: str, legitimate: str, unit: str | None) -> None:
    assert find_loop(text, legitimate) == unit
