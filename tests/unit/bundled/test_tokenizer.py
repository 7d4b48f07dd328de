import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lineclear.bundled import checkpoint_path
from lineclear.bundled.edit_tasks import WORDS, approximate_num_tokens, generate

TOKENIZER = Tokenizer.from_file(str(checkpoint_path() / "tokenizer.json"))


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@given(st.text(max_size=200))
def test_any_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(ids(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("name", ["count", "readLine", "snake_case_name", "HTTPServer2", "zyxqw", "naïve"])
@pytest.mark.parametrize(
    ("before", "after"), [("", "("), ("    ", " = "), ("`", "`"), ("(", ", "), ("\n", "\n"), (".", ":")]
)
def test_a_name_has_the_same_tokens_wherever_it_stands(name: str, before: str, after: str) -> None:
    assert ids(before + name + after) == ids(before) + ids(name) + ids(after)


def test_newline_and_indentation_are_one_token_apart_from_words() -> None:
    tokens = TOKENIZER.encode("a\n    b", add_special_tokens=False).ids
    assert [TOKENIZER.decode([token]) for token in tokens] == ["a", "\n    ", "b"]


def test_nearly_all_words_of_the_edit_tasks_are_single_tokens() -> None:
    assert len([word for word in WORDS if len(ids(word)) != 1]) <= 2


def test_special_tokens_are_single_and_ends_are_special() -> None:
    for text in ("[gMASK]", "<sop>", "<|user|>", "<|observation|>", "<think>", "</think>", "<tool_call>", "<arg_key>"):
        assert len(ids(text)) == 1
    assert TOKENIZER.decode(ids("a<|user|>"), skip_special_tokens=True) == "a"
    assert TOKENIZER.decode(ids("<tool_call>a"), skip_special_tokens=True) == "<tool_call>a"


def test_the_approximate_count_is_close_for_generated_files() -> None:
    for seed in range(10):
        text = generate(seed, target_tokens=600).messages[-1]["content"]
        assert approximate_num_tokens(text) == pytest.approx(len(ids(text)), rel=0.1)
