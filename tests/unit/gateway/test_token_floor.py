"""The floor is never above the real number of tokens, and near enough to it to refuse what is hopeless."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.bundled import checkpoint_path
from lineclear.gateway import token_floor
from lineclear.gateway.token_floor import TokenFloor
from lineclear.gateway.tokenization import Tokenization, load_tokenization
from tests.unit.gateway.tiny_text import build_byte_fallback_tokenizer, build_tokenizer

BUNDLED = load_tokenization(checkpoint_path())
STRIPPING = Tokenization(build_tokenizer().replace(b'"lstrip":false,"rstrip":false', b'"lstrip":true,"rstrip":true'))
TOKENIZATIONS = [BUNDLED, Tokenization(build_tokenizer()), Tokenization(build_byte_fallback_tokenizer()), STRIPPING]

SPACES = 40
"""As many as a token of the bundled vocabulary holds."""


def pieces_of(tokenization: Tokenization) -> list[str]:
    vocabulary = tokenization.vocabulary
    tokens = [vocabulary.token_bytes(token_id).decode(errors="ignore") for token_id in range(vocabulary.size)]
    longest = sorted(tokens, key=len, reverse=True)[:40]
    return [*longest, *tokenization.control_literals, " ", "\n", "\u2581", "\u3000", "\U0001f99c"]


texts = st.lists(
    st.one_of(st.sampled_from([piece for each in TOKENIZATIONS for piece in pieces_of(each)]), st.text(max_size=5)),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("tokenization", TOKENIZATIONS, ids=["bundled", "tiny", "byte_fallback", "stripping"])
@pytest.mark.parametrize("counted_from", [0, 1 << 30])
@given(text=texts, repeats=st.integers(1, 5))
@example(text="<|user|>" + " " * 500, repeats=1)
@example(text="\u2581" * 9, repeats=1)
@example(text="\n" + " " * SPACES, repeats=9)
def test_no_text_has_fewer_tokens(tokenization: Tokenization, counted_from: int, text: str, repeats: int) -> None:
    text *= repeats
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_floor, "COUNTED_FROM", counted_from)
        floor = tokenization.fewest_tokens(text)
    assert floor <= len(tokenization.encode_text(text))
    assert floor <= len(tokenization.encode_prompt(text, add_special_tokens=False))


@pytest.mark.parametrize(
    ("piece", "share"),
    [("x = 1\n", 0.3), ("\n", 0.9), ("<|user|>", 0.3), ("\U0001f99c", 0.9), ("a\n", 0.5), (" " * SPACES, 0.3)],
)
def test_the_floor_is_not_far_below(piece: str, share: float) -> None:
    text = piece * (300_000 // len(piece))
    assert BUNDLED.fewest_tokens(text) >= share * len(BUNDLED.encode_prompt(text, add_special_tokens=False))


def test_what_lies_beyond_the_counted_bytes_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_floor, "COUNTED_FROM", 4)
    monkeypatch.setattr(token_floor, "COUNTED_TO", 8)
    floor = TokenFloor([b"ab", b"a", b"b", b"    "])
    assert floor.fewest_tokens("ab" * 4) == 4
    assert floor.fewest_tokens("ab" * 4 + "c" * 400) == 104


def test_a_tokenizer_that_loses_text_has_no_floor() -> None:
    for change in (
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": ""}],
            }
        },
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
    ):
        tokenization = Tokenization(json.dumps(json.loads(build_tokenizer()) | change).encode())
        assert tokenization.fewest_tokens("a  b" * 1000) == 0
    without_byte = json.loads(build_byte_fallback_tokenizer())
    without_byte["model"]["byte_fallback"] = False
    assert Tokenization(json.dumps(without_byte).encode()).fewest_tokens("\U0001f99c" * 1000) == 0
