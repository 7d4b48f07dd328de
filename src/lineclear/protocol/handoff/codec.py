"""The bytes of handoff messages: MessagePack with a "type" tag, nothing negotiated, nothing ignored."""

from typing import Final, TypeVar

import msgspec

from lineclear.base.errors import InvariantError, PeerError
from lineclear.protocol.handoff.hello import PeerHello, PeerRefusal
from lineclear.protocol.handoff.messages import ForgetPrompt, HandoffMessage, ToDecode, ToRank
from lineclear.protocol.wire import MAX_MESSAGE_BYTES

PeerMessage = PeerHello | PeerRefusal | HandoffMessage | ForgetPrompt

_T = TypeVar("_T")

_ENCODER: Final = msgspec.msgpack.Encoder()
_TO_RANK: Final = msgspec.msgpack.Decoder(ToRank | ForgetPrompt)
_TO_DECODE: Final = msgspec.msgpack.Decoder(ToDecode)
_FROM_PEER: Final = msgspec.msgpack.Decoder(PeerMessage)


def encode(message: PeerMessage) -> bytes:
    """Return a message's bytes.

    Raises: InvariantError if the receiver would refuse it for its size.
    """
    data = _ENCODER.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvariantError(f"{type(message).__name__} takes {len(data)} bytes, allowed: {MAX_MESSAGE_BYTES}")
    return data


def decode_to_rank(data: bytes) -> ToRank | ForgetPrompt:
    """Read a message that a decode worker sent.

    Raises: PeerError if it is unknown, malformed or too large.
    """
    return _decode(_TO_RANK, data)


def decode_to_decode(data: bytes) -> ToDecode:
    """Read a message that a prefill rank sent.

    Raises: PeerError if it is unknown, malformed or too large.
    """
    return _decode(_TO_DECODE, data)


def decode_from_peer(data: bytes) -> PeerMessage:
    """Read any message on a link between two workers.

    Raises: PeerError if it is unknown, malformed or too large.
    """
    return _decode(_FROM_PEER, data)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    if len(data) > MAX_MESSAGE_BYTES:
        raise PeerError(f"handoff message of {len(data)} bytes, allowed: {MAX_MESSAGE_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"handoff message of {len(data)} bytes: {error}") from error
