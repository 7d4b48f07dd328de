"""The file of one block: a header that says what it is, then the block's parts one after the other.

    offset  size  field
    0       8     magic
    8       4     version (little-endian, as all numbers)
    12      4     size of this header
    16      8     size of the payload
    24      32    fingerprint: of the model, the layout and all else that the KV depends on
    56      32    prefix key
    88      32    digest of everything before it and of the payload
    120     8     zeros

Invariants:
    1. `check` accepts exactly what `header` has made for the same fingerprint, key and payload.
    2. Nothing that a file says is used to find or size anything: what is expected is known without it.
"""

from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from struct import Struct
from typing import Final

from lineclear.kv.prefix_key import PrefixKey

MAGIC: Final = b"LCKVBLK\n"
VERSION: Final = 1
FINGERPRINT_BYTES: Final = 32

_FIELDS: Final = Struct("<8sIIQ32s32s")
_HEADER: Final = Struct(f"<{_FIELDS.size}s32s8s")
HEADER_BYTES: Final = _HEADER.size


class Fault(StrEnum):
    """Why a file is not the one that was asked for."""

    DAMAGED = "damaged"
    FOREIGN = "foreign"


def header(fingerprint: bytes, key: PrefixKey, payload: Iterable[memoryview]) -> bytes:
    """Make the header of a block's file."""
    payload = list(payload)
    fields = _fields(fingerprint, key, sum(len(part) for part in payload))
    return _HEADER.pack(fields, _digest(fields, payload), bytes(8))


def check(found: bytes, fingerprint: bytes, key: PrefixKey, payload: Iterable[memoryview]) -> Fault | None:
    """Compare a header that was read with what it should be, the payload that was read with it included."""
    payload = list(payload)
    if len(found) != HEADER_BYTES:
        return Fault.DAMAGED
    fields, digest, padding = _HEADER.unpack(found)
    if fields != _fields(fingerprint, key, sum(len(part) for part in payload)):
        return Fault.FOREIGN
    return None if digest == _digest(fields, payload) and padding == bytes(8) else Fault.DAMAGED


def _fields(fingerprint: bytes, key: PrefixKey, payload_bytes: int) -> bytes:
    return _FIELDS.pack(MAGIC, VERSION, HEADER_BYTES, payload_bytes, fingerprint, key)


def _digest(fields: bytes, payload: Iterable[memoryview]) -> bytes:
    digest = blake2b(fields, digest_size=32)
    for part in payload:
        digest.update(part)
    return digest.digest()
