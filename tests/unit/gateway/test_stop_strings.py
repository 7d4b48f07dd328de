"""Stop strings against a reading of the text one character at a time."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.gateway.stop_strings import StopStrings

texts = st.text(alphabet="ab\n", max_size=24)


def naive(text: str, stop_strings: tuple[str, ...]) -> tuple[str, str | None]:
    """The first stop string that is complete, and what is before it."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(borders)]


def run(pieces: list[str], stop_strings: tuple[str, ...]) -> tuple[str, str | None]:
    watch = StopStrings(stop_strings)
    sent = "".join([*map(watch.push, pieces)])
    return (sent if watch.found else sent + watch.flush()), watch.found


@given(
    text=texts,
    stop_strings=st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3, unique=True).map(tuple),
    cuts=st.lists(st.integers(0, 24)),
)
@example(text="aab", stop_strings=("ab", "aab"), cuts=[1, 2])
@example(text="ok\nUser:x", stop_strings=("\nUser:",), cuts=[5, 7])
def test_any_cutting_gives_what_reading_by_character_gives(
    text: str, stop_strings: tuple[str, ...], cuts: list[int]
) -> None:
    assert run(pieces_of(text, cuts), stop_strings) == naive(text, stop_strings)


@given(text=texts)
def test_nothing_of_a_possible_stop_string_is_sent_early(text: str) -> None:
    watch = StopStrings(("abab\n",))
    sent = ""
    for character in text:
        sent += watch.push(character)
        assert watch.found or text.startswith(sent)
        assert "abab\n" not in sent


def test_text_is_held_only_while_it_may_become_a_stop_string() -> None:
    watch = StopStrings(("END",))
    assert watch.push("the E") == "the "
    assert watch.num_held == 1
    assert watch.push("ast") == "East"
    assert watch.num_held == 0


def test_nothing_follows_a_stop_string() -> None:
    watch = StopStrings(("x",))
    assert watch.push("axb") == "a"
    assert watch.push("more") == ""
    assert watch.flush() == ""


@pytest.mark.parametrize("text", ["", "anything"])
def test_without_stop_strings_text_passes(text: str) -> None:
    assert StopStrings(()).push(text) == text
