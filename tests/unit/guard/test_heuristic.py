"""The text heuristics: what they find, what they cannot see, what they take for broken although it is not."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.bundled.corpus import load_corpus
from lineclear.guard.heuristic import MIN_CHARS, find_in_text, scripts_of

LATIN = frozenset({"LATIN"})
CODE = '''def total(items: list[int]) -> int:
    """Add up what is positive."""
    result = 0
    for item in items:
        if item > 0:
            result += item
    return result


class Reader:
    def __init__(self, path: str) -> None:
        self.path = path
'''


def test_scripts_are_those_of_letters() -> None:
    assert scripts_of("x = 1  # \u4f60\u597d, \u043c\u0438\u0440") == {"LATIN", "CJK", "CYRILLIC"}
    assert scripts_of("1 + 2 \u2192 3") == frozenset()


def test_code_is_healthy() -> None:
    assert find_in_text(CODE, LATIN) is None


def test_little_of_the_corpus_is_taken_for_broken() -> None:
    windows = [text[1000:4000] for text in load_corpus().held_out if len(text) > 4000]
    assert len(windows) >= 10
    found = [find_in_text(window, scripts_of(window)) for window in windows]
    assert sum(each is not None for each in found) <= len(windows) // 10


@pytest.mark.parametrize(
    ("garbage", "figure"),
    [
        ("\ufffd", "strange_share"),
        ("\x00", "strange_share"),
        ("\ue000", "strange_share"),
        ("\u4f60", "strange_share"),
        ("\u0434", "strange_share"),
    ],
)
def test_characters_that_nobody_asked_for_are_a_collapse(garbage: str, figure: str) -> None:
    text = "".join(char + garbage * (idx % 4 == 0) for idx, char in enumerate(CODE))
    finding = find_in_text(text, LATIN)
    assert finding is not None
    assert finding.kind == "collapse"
    assert finding.evidence[figure] > 0.1


def test_a_script_of_the_prompt_is_not_strange() -> None:
    text = "".join(f"x{idx} = '\u4f60\u597d'\n" for idx in range(40))
    assert find_in_text(text, LATIN) is not None
    assert find_in_text(text, frozenset({"CJK"})) is None


def test_words_of_several_scripts_are_a_collapse_even_if_the_prompt_has_them_all() -> None:
    rng = random.Random(1)
    words = [rng.choice("abcdef") + rng.choice("\u0434\u0436\u0438") + rng.choice("xyz") for _ in range(100)]
    finding = find_in_text(" ".join(words), frozenset({"CYRILLIC"}))
    assert finding is not None
    assert finding.kind == "collapse"
    assert finding.evidence["mixed_share"] > 0.2


@given(piece=st.text("abcdefgh (),.\n", min_size=2, max_size=120), lead=st.integers(0, 50))
def test_an_end_that_repeats_one_piece_is_a_loop(piece: str, lead: int) -> None:
    is_blank_or_one_character = not piece.strip() or len(set(piece)) == 1
    repeated = CODE[:lead] + piece * (2 * MIN_CHARS)
    finding = find_in_text(repeated, LATIN)
    assert (finding is None) == is_blank_or_one_character
    if finding is not None:
        assert finding.kind == "loop"
        assert len(piece) % finding.evidence["period_chars"] == 0


def test_few_repeats_rules_and_blanks_are_no_loop() -> None:
    assert find_in_text(CODE + "    pass\n" * 5, LATIN) is None
    assert find_in_text(CODE + "-" * 300, LATIN) is None
    assert find_in_text(CODE + " \n" * 200, LATIN) is None


def test_few_phrases_in_changing_order_are_a_loop() -> None:
    rng = random.Random(3)
    phrases = [
        "now let me read the file again ",
        "first we look at the tests once more ",
        "wait there is one more thing ",
    ]
    finding = find_in_text("".join(rng.choice(phrases) for _ in range(80)), LATIN)
    assert finding is not None
    assert finding.evidence["distinct_share"] < 0.3


def test_a_table_that_was_asked_for_is_taken_for_a_loop() -> None:
    """A known weakness: the text does not say that it was copied."""
    finding = find_in_text("    [0, 0, 0, 0],\n" * 60, LATIN)
    assert finding is not None
    assert finding.kind == "loop"


def test_fluent_nonsense_is_not_seen() -> None:
    """A known weakness: other code than was asked for is code."""
    lines = CODE.splitlines(keepends=True)
    random.Random(2).shuffle(lines)
    assert find_in_text("".join(lines), LATIN) is None


def test_of_a_short_text_nothing_is_said() -> None:
    assert find_in_text("\ufffd" * (MIN_CHARS - 1), LATIN) is None
    assert find_in_text("\ufffd" * MIN_CHARS, LATIN) is not None
