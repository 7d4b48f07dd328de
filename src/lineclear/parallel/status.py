"""What goes ahead of every payload: whether there is one, and if not, whose failure it is.

Byte 0 is 1 if a payload follows, 0 if a rank has failed, 2 if one is gone; bytes 1 and 2 are that rank, little endian;
the rest is its reason in UTF-8, padded with zeros.
"""

from lineclear.base.errors import RankError, RankLostError

STATUS_BYTES = 512
"""Of one status: room for a reason of a few lines."""

_HEADER_BYTES = 3


def encode_status(error: RankError | None) -> bytes:
    """`STATUS_BYTES` that say what `decode_status` returns; a longer reason is cut."""
    if error is None:
        return b"\x01".ljust(STATUS_BYTES, b"\0")
    reason = error.reason.encode()[: STATUS_BYTES - _HEADER_BYTES]
    kind = b"\x02" if isinstance(error, RankLostError) else b"\0"
    return (kind + error.cp_rank.to_bytes(2, "little") + reason).ljust(STATUS_BYTES, b"\0")


def decode_status(status: bytes) -> RankError | None:
    """None where a payload follows."""
    if status[0] == 1:
        return None
    reason = status[_HEADER_BYTES:].rstrip(b"\0").decode(errors="replace")
    kind = RankLostError if status[0] else RankError
    return kind(int.from_bytes(status[1:_HEADER_BYTES], "little"), reason)
