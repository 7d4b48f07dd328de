"""Which prompts an instance has seen, roughly: it computes only what its own prefix tree lacks.

A prompt is remembered as keys of its prefixes at every `STRIDE` tokens, each made of the one before and the tokens in
between, so that equal keys mean equal prefixes. The oldest are forgotten. What is wrong here costs time and nothing
else: the instance looks into its own tree.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b

STRIDE = 256
"""Tokens between two keys."""

MAX_KEYS = 65_536
"""Of one instance: prefixes of 16 million tokens."""


class Affinity:
    """The prompts that one instance has been sent."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def note(self, tokens: "array[int]") -> None:
        """The instance is sent a prompt."""
        for key in _keys(tokens):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > MAX_KEYS:
            self._keys.popitem(last=False)

    def num_known(self, tokens: "array[int]") -> int:
        """How many tokens of a prompt it has been sent before, from the first on, to the last whole stride."""
        num_known = 0
        for key in _keys(tokens):
            if key not in self._keys:
                break
            num_known += STRIDE
        return num_known


def _keys(tokens: "array[int]") -> Iterator[bytes]:
    key = b""
    for start in range(0, len(tokens) - STRIDE + 1, STRIDE):
        key = blake2b(key + tokens[start : start + STRIDE].tobytes(), digest_size=16).digest()
        yield key
