"""Texts as blocks, where no tokenizer is at hand: a token counts as four bytes, a block as 64 tokens.

A block's id is a digest of the text up to its end, so equal ids are equal prefixes. Ids are of no use to hide content
with: whoever has a guess can check it. `lineclear trace import` says so.
"""

import hashlib

BLOCK_LEN = 64
BYTES_PER_TOKEN = 4


def text_len(text: str) -> int:
    """Tokens that a text counts as, at least 1."""
    return max(1, -(-len(_raw(text)) // BYTES_PER_TOKEN))


def text_blocks(text: str) -> tuple[int, ...]:
    """Ids of its whole blocks."""
    raw, size = _raw(text), BLOCK_LEN * BYTES_PER_TOKEN
    chain = hashlib.blake2b(digest_size=8)
    ids: list[int] = []
    for start in range(0, len(raw) - size + 1, size):
        chain.update(raw[start : start + size])
        ids.append(int.from_bytes(chain.digest(), "big") >> 1)
    return tuple(ids)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
