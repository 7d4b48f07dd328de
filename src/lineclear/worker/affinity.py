"""Which prompts an instance has seen, roughly: it computes only what its own prefix tree lacks.

A prompt is remembered as keys of its prefixes at every `STRIDE` tokens, each made of the one before and the tokens in
between, so that equal keys mean equal prefixes. The oldest are forgotten. What is wrong here costs time and nothing
else: the instance looks into its own tree.
"""

import itertools
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

STRIDE = 256
"""Tokens between two keys."""

MAX_KEYS = 65_536
"""Of one instance: prefixes of 16 million tokens."""


class Affinity:
    """The prompts that one instance has been sent."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def note(self, keys: Iterable[bytes]) -> None:
        """The instance is sent the prompt with these `prefix_keys`."""
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > MAX_KEYS:
            self._keys.popitem(last=False)

    def num_known(self, keys: Iterable[bytes]) -> int:
        """How many tokens of a prompt it has been sent before, from the first on, to the last whole stride."""
        return STRIDE * sum(1 for _ in itertools.takewhile(self._keys.__contains__, keys))


def prefix_keys(tokens: "array[int]") -> list[bytes]:
    """The keys of a prompt's prefixes, shortest first. Cost: proportional to its length; once for all instances."""
    keys: list[bytes] = []
    key = b""
    for start in range(0, len(tokens) - STRIDE + 1, STRIDE):
        key = blake2b(key + tokens[start : start + STRIDE].tobytes(), digest_size=16).digest()
        keys.append(key)
    return keys
