"""Which requests are turns of one conversation."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lineclear.lab.families import MIN_PROMPT_LEN, families

LONG = "x" * 64


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts], **more}


def test_turns_are_of_the_first_and_others_are_alone() -> None:
    requests = {
        "third": chat("a", "b", "c"),
        "first": chat("a"),
        "second": chat("a", "b"),
        "other": chat("ab"),
        "with tools": chat("a", tools=[{"type": "function"}]),
    }
    assert families(requests) == {
        "first": "first", "second": "first", "third": "first", "other": "other", "with tools": "with tools"
    }  # fmt: skip


def test_branches_of_one_conversation_are_one() -> None:
    requests = {"root": chat("a"), "left": chat("a", "l"), "left on": chat("a", "l", "x"), "right": chat("a", "r")}
    assert set(families(requests).values()) == {"root"}


def test_texts_and_tokens_are_compared_as_far_as_a_turn_may_be_short() -> None:
    requests: dict[str, dict[str, Any]] = {
        "text": {"prompt": LONG}, "text on": {"prompt": LONG + "y"},
        "short": {"prompt": "def"}, "no turn of it": {"prompt": "define"}, "short again": {"prompt": "def"},
        "tokens": {"prompt": [1] * 16}, "tokens on": {"prompt": [1] * 17},
        "few": {"prompt": [2]}, "no turn of few": {"prompt": [2, 3]}, "many at once": {"prompt": ["def"]},
        "nothing": {},
        "no tokens": {"prompt": []},
    }  # fmt: skip
    found = families(requests)
    assert (found["text on"], found["tokens on"], found["short again"]) == ("text", "tokens", "short")
    alone = (
        "text",
        "short",
        "no turn of it",
        "tokens",
        "few",
        "no turn of few",
        "many at once",
        "nothing",
        "no tokens",
    )
    assert all(found[name] == name for name in alone)


@given(st.lists(st.lists(st.integers(0, 1), max_size=3).map(lambda tail: [7] * 15 + tail), max_size=12))
def test_a_family_is_all_that_begins_with_its_shortest_prompt(prompts: list[list[int]]) -> None:
    found = families({str(idx): {"prompt": prompt} for idx, prompt in enumerate(prompts)})
    assert set(found) == {str(idx) for idx in range(len(prompts))}
    for idx, prompt in enumerate(prompts):
        turns = [
            other
            for other, shorter in enumerate(prompts)
            if prompt == shorter or (len(shorter) >= MIN_PROMPT_LEN[int] and prompt[: len(shorter)] == shorter)
        ]
        assert int(found[str(idx)]) == min(turns, key=lambda other: (len(prompts[other]), other))
