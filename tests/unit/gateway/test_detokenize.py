"""Tokens to text: whole characters only, and nothing lost."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.gateway.detokenize import Detokenizer, detokenize
from lineclear.gateway.tokenization import Tokenization
from tests.unit.gateway.tiny_text import build_byte_fallback_tokenizer, build_tokenizer

BYTE_LEVEL = Tokenization(build_tokenizer())
BYTE_FALLBACK = Tokenization(build_byte_fallback_tokenizer())
PARROT = "\U0001f99c"


def byte_tokens(tokenization: Tokenization, data: bytes) -> list[int]:
    """One token for each byte."""
    by_bytes = {
        tokenization.vocabulary.token_bytes(token_id): token_id
        for token_id in reversed(range(tokenization.vocabulary.size))
        if token_id not in tokenization.vocabulary.control_tokens
    }
    return [by_bytes[bytes([value])] for value in data]


def spell(tokenization: Tokenization, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenization.vocabulary)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


@pytest.mark.parametrize("tokenization", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte_level", "byte_fallback"])
@given(text=st.text())
@example(text=PARROT + "é\u0000 ▁")
def test_text_survives_byte_by_byte_and_no_piece_holds_half_a_character(tokenization: Tokenization, text: str) -> None:
    pieces = spell(tokenization, byte_tokens(tokenization, text.encode()))
    assert "".join(pieces) == text
    assert all(piece.encode().decode() == piece for piece in pieces)


@given(text=st.text())
def test_encoded_text_comes_back(text: str) -> None:
    token_ids = BYTE_LEVEL.encode_text(text)
    assert "".join(spell(BYTE_LEVEL, token_ids)) == text
    assert detokenize(BYTE_LEVEL.vocabulary, token_ids) == text


def test_a_character_comes_with_the_token_that_completes_it() -> None:
    assert spell(BYTE_LEVEL, byte_tokens(BYTE_LEVEL, PARROT.encode())) == ["", "", "", PARROT, ""]


def test_text_that_ends_inside_a_character_shows_one_replacement() -> None:
    assert spell(BYTE_LEVEL, byte_tokens(BYTE_LEVEL, PARROT.encode()[:3])) == ["", "", "", "�"]


def test_a_broken_character_shows_one_replacement_and_the_rest_goes_on() -> None:
    assert "".join(spell(BYTE_LEVEL, byte_tokens(BYTE_LEVEL, PARROT.encode()[:2] + b"ok"))) == "�ok"


def test_partial_character_is_known() -> None:
    detokenizer = Detokenizer(BYTE_LEVEL.vocabulary)
    first, *rest = byte_tokens(BYTE_LEVEL, "é".encode())
    detokenizer.push(first)
    assert detokenizer.has_partial_character
    detokenizer.push(rest[0])
    assert not detokenizer.has_partial_character


def test_flush_forgets_the_partial_character() -> None:
    detokenizer = Detokenizer(BYTE_LEVEL.vocabulary)
    detokenizer.push(byte_tokens(BYTE_LEVEL, PARROT.encode())[0])
    assert detokenizer.flush() == "�"
    assert detokenizer.push(byte_tokens(BYTE_LEVEL, b"a")[0]) == "a"


def test_byte_fallback_tokens_begin_with_a_real_space() -> None:
    assert detokenize(BYTE_FALLBACK.vocabulary, BYTE_FALLBACK.encode_text("b a")) == "b a"


def test_unknown_token_ids_have_no_text() -> None:
    assert detokenize(BYTE_LEVEL.vocabulary, [10_000]) == ""
