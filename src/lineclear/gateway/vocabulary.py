"""What every token id stands for: bytes of text, or a control token of the chat format.

The bytes come from `tokenizer.json` itself, so that a character split over several tokens can be put together again:

| decoder in the file | a token's bytes |
|---|---|
| `ByteLevel` | each character of the token stands for one byte (the GPT-2 table) |
| `ByteFallback` | `<0xNN>` is one byte; in other tokens the replacement character is a space |
| anything else | unknown; `decode_one` of the tokenizer is used instead, and only whole tokens can be shown |

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), `bytes_to_unicode` of the code
published with it; Hugging Face `tokenizers`, decoders `ByteLevel`, `ByteFallback` and `Replace`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that is matched as a whole before the text is split: roles, tags, ends.

    `is_special` tokens are never shown to clients; the others (tags such as `<think>`) are when nothing interprets
    them. `strips_left` and `strips_right` say that the token swallows whitespace beside it.
    """

    token_id: int
    literal: str
    is_special: bool
    strips_left: bool
    strips_right: bool


class Vocabulary:
    """The bytes and the control tokens of a tokenizer.

    Args:
        tokens: token by id, control tokens included.
        control_tokens: the added tokens of the tokenizer.
        piece: bytes of an ordinary token.
    """

    def __init__(
        self, tokens: Mapping[int, str], control_tokens: list[ControlToken], piece: Callable[[int, str], bytes]
    ) -> None:
        self.control_tokens: dict[int, ControlToken] = {token.token_id: token for token in control_tokens}
        self.size = 1 + max(tokens, default=-1)
        self._bytes = {
            token_id: piece(token_id, token)
            for token_id, token in tokens.items()
            if token_id not in self.control_tokens
        }
        self._id_by_literal = {token.literal: token.token_id for token in control_tokens}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; a control token's are its literal; an unused id has none."""
        control = self.control_tokens.get(token_id)
        return control.literal.encode() if control is not None else self._bytes.get(token_id, b"")

    def control_id(self, literal: str) -> int | None:
        """The id of a control token, or `None` if the vocabulary does not have it."""
        return self._id_by_literal.get(literal)


def read_vocabulary(
    tokenizer: Mapping[str, Any], tokens: Mapping[int, str], decode_one: Callable[[int], str]
) -> Vocabulary:
    """Build the vocabulary from the parsed `tokenizer.json`.

    Args:
        tokenizer: the parsed file.
        tokens: token by id, as the tokenizer lists them.
        decode_one: text of one token, for decoders whose bytes are not known.
    """
    return Vocabulary(tokens, read_control_tokens(tokenizer), _piece_reader(tokenizer, decode_one))


def read_control_tokens(tokenizer: Mapping[str, Any]) -> list[ControlToken]:
    """The added tokens of a parsed `tokenizer.json`."""
    return [
        ControlToken(
            token_id=added["id"],
            literal=added["content"],
            is_special=added.get("special", False),
            strips_left=added.get("lstrip", False),
            strips_right=added.get("rstrip", False),
        )
        for added in tokenizer.get("added_tokens") or []
    ]


def replacements(tokenizer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the decoder of a parsed `tokenizer.json` replaces, and by what."""
    return [
        (decoder["pattern"]["String"], decoder["content"])
        for decoder in _decoders(tokenizer.get("decoder"))
        if decoder["type"] == "Replace" and "String" in decoder["pattern"]
    ]


def _piece_reader(tokenizer: Mapping[str, Any], decode_one: Callable[[int], str]) -> Callable[[int, str], bytes]:
    kinds = {decoder["type"] for decoder in _decoders(tokenizer.get("decoder"))}
    if "ByteLevel" in kinds:
        byte_by_character = {character: value for value, character in byte_level_alphabet().items()}
        return lambda _, token: bytes(byte_by_character[character] for character in token)
    if "ByteFallback" in kinds:
        replaced = replacements(tokenizer)
        return lambda _, token: _byte_fallback_piece(token, replaced)
    return lambda token_id, _: decode_one(token_id).encode()


def _decoders(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if decoder is None:
        return
    yield decoder
    for part in decoder.get("decoders", ()):
        yield from _decoders(part)


def _byte_fallback_piece(token: str, replaced: list[tuple[str, str]]) -> bytes:
    byte_token = _BYTE_TOKEN.fullmatch(token)
    if byte_token is not None:
        return bytes([int(byte_token[1], 16)])
    for pattern, content in replaced:
        token = token.replace(pattern, content)
    return token.encode()


def byte_level_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [value for value in range(256) if value not in printable]
    return {value: chr(value) for value in printable} | {value: chr(256 + idx) for idx, value in enumerate(others)}
