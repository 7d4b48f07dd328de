"""How few tokens a text can have, found without tokenizing it.

Tokenizing takes some hundred bytes of memory for each byte of text. What is hopelessly too long must be refused before.

Where a tokenizer loses nothing, each byte of a text belongs to exactly one token. So a text has at least as many tokens
as each of these says:

| | floor | because |
|---|---|---|
| 1 | bytes / longest token | no token holds more |
| 2 | for each byte, 1 / the longest token that holds it, added up | a token of n bytes has n shares of 1/n or less |
| 3 | for any one byte, its count / the most of it in one token | no token holds more of it |

The longest tokens of vocabularies for code are runs of spaces: 2 and 3 keep them from counting for other text. What
changes or drops text before it is tokenized (a normalizer, spaces swallowed by control tokens, unknown characters)
would make the floor too high: see `_loses_nothing`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lineclear.gateway.vocabulary import Vocabulary, byte_level_alphabet, replacements

COUNTED_FROM = 256 * 1024
"""Bytes from which each byte is looked at; a shorter text costs little to tokenize, and only its length is."""

COUNTED_TO = 16 * 1024 * 1024
"""Bytes that are looked at, some 0.5 s; of the rest, only the length is."""

_SLICE = 64 * 1024
"""Counting holds the interpreter's lock for one slice: 2 ms."""

_SPACES = frozenset(value for space in map(chr, range(0x3001)) if space.isspace() for value in space.encode())


class TokenFloor:
    """The floor of one vocabulary.

    Args:
        pieces: every byte string that a token can stand for.
        uncounted: bytes that need not belong to a token.
    """

    def __init__(self, pieces: Iterable[bytes], uncounted: frozenset[int] = frozenset()) -> None:
        self._longest = [0] * 256
        self._most = [0] * 256
        for piece in pieces:
            for value in set(piece) - uncounted:
                self._longest[value] = max(self._longest[value], len(piece))
                self._most[value] = max(self._most[value], piece.count(value))
        self._longest_of_all = max(self._longest)
        self._is_complete = not uncounted

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least.

        Cost: 40 ns for each byte, from `COUNTED_FROM` to `COUNTED_TO`.
        """
        data = text.encode()
        if not self._longest_of_all:
            return 0
        if not self._is_complete:
            return self._fewest_of(_count(data))
        if len(data) < COUNTED_FROM:
            return len(data) // self._longest_of_all
        return self._fewest_of(_count(data), max(0, len(data) - COUNTED_TO))

    def _fewest_of(self, counts: Mapping[int, int], num_others: int = 0) -> int:
        known = [(value, count) for value, count in counts.items() if self._longest[value]]
        shares = sum(count / self._longest[value] for value, count in known) + num_others / self._longest_of_all
        return max([int(shares), *(math.ceil(count / self._most[value]) for value, count in known)])


def read_token_floor(tokenizer: Mapping[str, Any], tokens: Mapping[int, str], vocabulary: Vocabulary) -> TokenFloor:
    """Build the floor from the parsed `tokenizer.json`; it is 0 for a tokenizer that may lose some of the text.

    Args:
        tokenizer: the parsed file.
        tokens: token by id, as the tokenizer lists them.
        vocabulary: the bytes of the tokens.
    """
    if not _loses_nothing(tokenizer):
        return TokenFloor(())
    controls = vocabulary.control_tokens.values()
    swallows = any(control.strips_left or control.strips_right for control in controls)
    return TokenFloor(_pieces(tokenizer, tokens, vocabulary), _SPACES if swallows else frozenset())


def _pieces(tokenizer: Mapping[str, Any], tokens: Mapping[int, str], vocabulary: Vocabulary) -> Iterator[bytes]:
    is_byte_level = "ByteLevel" in _kinds(tokenizer.get("decoder"), "decoders")
    for token_id, token in tokens.items():
        yield vocabulary.token_bytes(token_id)
        if not is_byte_level:
            yield token.encode()  # somebody may have written the replacement character itself


def _loses_nothing(tokenizer: Mapping[str, Any]) -> bool:
    """Whether every byte of a text is in a token: only what is known to be harmless is."""
    back = {content: pattern for pattern, content in replacements(tokenizer)}
    normalizers = _parts(tokenizer.get("normalizer"), "normalizers")
    pre_tokenizers = _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return (
        all(_only_adds(normalizer, back) for normalizer in normalizers)
        and all(_only_cuts(pre_tokenizer) for pre_tokenizer in pre_tokenizers)
        and _knows_every_byte(tokenizer)
    )


def _only_adds(normalizer: Mapping[str, Any], back: Mapping[str, str]) -> bool:
    if normalizer["type"] != "Replace":
        return normalizer["type"] in {"Prepend", "ByteLevel"}
    pattern, content = normalizer["pattern"].get("String"), normalizer["content"]
    return pattern is not None and back.get(pattern) == content and len(content.encode()) >= len(pattern.encode())


def _only_cuts(pre_tokenizer: Mapping[str, Any]) -> bool:
    if pre_tokenizer["type"] in {"Split", "Punctuation"}:
        return pre_tokenizer.get("behavior") != "Removed"
    return pre_tokenizer["type"] in {"ByteLevel", "Digits", "UnicodeScripts"}


def _knows_every_byte(tokenizer: Mapping[str, Any]) -> bool:
    model = tokenizer["model"]
    vocab = model.get("vocab")
    if model.get("type") != "BPE" or not isinstance(vocab, dict):
        return False
    if "ByteLevel" in _kinds(tokenizer.get("decoder"), "decoders"):
        maps_bytes = _kinds(tokenizer.get("normalizer"), "normalizers")
        maps_bytes |= _kinds(tokenizer.get("pre_tokenizer"), "pretokenizers")
        alphabet = byte_level_alphabet().values()
        return "ByteLevel" in maps_bytes and all(character in vocab for character in alphabet)
    return bool(model.get("byte_fallback")) and all(f"<0x{value:02X}>" in vocab for value in range(256))


def _kinds(step: Mapping[str, Any] | None, parts_key: str) -> set[str]:
    return {part["type"] for part in _parts(step, parts_key)}


def _parts(step: Mapping[str, Any] | None, parts_key: str) -> Iterator[Mapping[str, Any]]:
    """The steps that a sequence of steps consists of."""
    if step is None:
        return
    if step["type"] != "Sequence":
        yield step
        return
    for part in step[parts_key]:
        yield from _parts(part, parts_key)


def _count(data: bytes) -> Counter[int]:
    counts: Counter[int] = Counter()
    for start in range(0, min(len(data), COUNTED_TO), _SLICE):
        counts.update(data[start : min(start + _SLICE, COUNTED_TO)])
    return counts
