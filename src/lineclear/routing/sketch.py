"""Which prefixes a worker probably has in its cache, as far as the gateway can tell from what it sent there.

A prompt is cut in pieces of `PIECE_TOKENS`; each piece has a name, a digest of it and of all before it. A sketch keeps
the names of the pieces that its worker was sent, the newest of them, as many as the worker's cache has room for. It is
an estimate: it decides where a prompt is cheap, never what is read.

Invariants:
1. A sketch has at most `capacity` names.
2. The name of a piece is forgotten before those of the pieces before it in the same prompt.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

PIECE_TOKENS: Final = 128
"""Tokens of a piece. Smaller ones cost time for each prompt; larger ones miss what short prompts share."""

NAME_BYTES: Final = 8
"""Of a piece's name. Among a million names two are the same once in 37 million times; then a prompt goes elsewhere."""

MAX_PIECES: Final = 65_536
"""Of one sketch: eight million tokens, and about 8 MB."""


def piece_names(token_ids: Sequence[int]) -> tuple[bytes, ...]:
    """The names of a prompt's whole pieces, in order. Cost: one digest a piece, some ms for 100,000 tokens."""
    data = memoryview(array("I", token_ids)).cast("B")
    num_bytes = PIECE_TOKENS * array("I").itemsize
    names: list[bytes] = []
    name = b""
    for start in range(0, len(data) - num_bytes + 1, num_bytes):
        digest = blake2b(name, digest_size=NAME_BYTES)
        digest.update(data[start : start + num_bytes])
        name = digest.digest()
        names.append(name)
    return tuple(names)


class PrefixSketch:
    """What one worker was sent.

    Args:
        num_tokens: that its cache has room for.
    """

    def __init__(self, num_tokens: int) -> None:
        self._capacity = max(1, min(MAX_PIECES, num_tokens // PIECE_TOKENS))
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    @property
    def capacity(self) -> int:
        """The most names it keeps."""
        return self._capacity

    def num_cached_tokens(self, names: Sequence[bytes]) -> int:
        """Tokens of a prompt with these pieces that are probably in the cache: a prefix of it. Cost: O(log n)."""
        if not names or names[0] not in self._names:
            return 0
        # What is kept of a prompt is a prefix of it (invariant 2), so a binary search finds its end.
        low, high = 1, len(names)
        while low < high:
            middle = (low + high + 1) // 2
            if names[middle - 1] in self._names:
                low = middle
            else:
                high = middle - 1
        return low * PIECE_TOKENS

    def add(self, names: Sequence[bytes]) -> None:
        """A prompt with these pieces was sent. Cost: O(n)."""
        for name in reversed(names[: self._capacity]):
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > self._capacity:
            self._names.popitem(last=False)

    def forget(self, names: Sequence[bytes]) -> None:
        """The worker gave up this prompt; others with the same first piece count as given up until it is sent again."""
        for name in names:
            self._names.pop(name, None)

    def check(self) -> None:
        """Assert invariant 1."""
        assert len(self._names) <= self._capacity, f"{len(self._names)} names, allowed: {self._capacity}"
