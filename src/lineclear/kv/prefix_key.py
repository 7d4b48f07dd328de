"""Names of prefixes that mean the same in every tier, process and life: a chain of digests, one link a block.

    key of block 0 = family │ digest of block 0's edge          family: the first bytes of block 0's digest
    key of block i = family │ digest of (key of block i - 1, block i's edge)

An edge is the block's tokens and the token after them, as in the prefix tree, and for the same reason. Equal keys mean
equal tokens from the first on: a digest has 192 bits, and nobody can look for collisions in fewer than 2^96 tries. All
prefixes with the same first block are one family, which can be given up as a whole where its KV is suspect.
"""

from hashlib import blake2b
from typing import Final, NewType

PrefixKey = NewType("PrefixKey", bytes)
"""The name of a prefix of whole blocks, and of the last of these blocks."""

FAMILY_BYTES: Final = 8
KEY_BYTES: Final = 32


def child_key(parent: PrefixKey | None, edge: bytes) -> PrefixKey:
    """Name the prefix that is one block longer than `parent`; None is the empty prefix."""
    if parent is None:
        return PrefixKey(blake2b(edge, digest_size=KEY_BYTES).digest())
    digest = blake2b(parent + edge, digest_size=KEY_BYTES - FAMILY_BYTES).digest()
    return PrefixKey(parent[:FAMILY_BYTES] + digest)


def family_of(key: PrefixKey) -> bytes:
    """What all prefixes with the same first block have in common."""
    return key[:FAMILY_BYTES]
