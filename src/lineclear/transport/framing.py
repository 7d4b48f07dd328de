"""Frames on a byte stream: a length of 4 bytes, big-endian, then that many bytes. An empty frame is a heartbeat."""

from lineclear.base.errors import PeerError
from lineclear.protocol.wire import MAX_MESSAGE_BYTES

HEADER_LEN = 4
HEARTBEAT = bytes(HEADER_LEN)

MAX_UNSENT_BYTES = 8 * MAX_MESSAGE_BYTES
"""A peer that leaves this much unread is stuck; more would only fill our memory."""


def frame(payload: bytes) -> bytes:
    """The payload with its length in front.

    Raises:
        ValueError: The payload is empty or longer than a peer would accept.
    """
    if not 0 < len(payload) <= MAX_MESSAGE_BYTES:
        raise ValueError(f"payload: got {len(payload)} bytes, allowed 1 to {MAX_MESSAGE_BYTES}")
    return len(payload).to_bytes(HEADER_LEN, "big") + payload


class FrameDecoder:
    """Cuts a byte stream into payloads, whatever pieces it arrives in.

    Cost: each byte is copied twice; an incomplete frame is not scanned again.
    """

    def __init__(self, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._buffer = bytearray()
        self._max_message_bytes = max_message_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes and return the payloads they complete; heartbeats have none.

        Raises:
            PeerError: A frame is announced that is too long; the stream is useless from here on.
        """
        self._buffer += data
        payloads: list[bytes] = []
        start = 0
        while (end := self._frame_end(start)) is not None:
            if end > start + HEADER_LEN:
                payloads.append(bytes(memoryview(self._buffer)[start + HEADER_LEN : end]))
            start = end
        del self._buffer[:start]
        return payloads

    def _frame_end(self, start: int) -> int | None:
        """Where the frame at `start` ends, or `None` while it is incomplete."""
        body = start + HEADER_LEN
        if len(self._buffer) < body:
            return None
        payload_len = int.from_bytes(self._buffer[start:body], "big")
        if payload_len > self._max_message_bytes:
            raise PeerError(f"a frame of {payload_len} bytes is announced, allowed at most {self._max_message_bytes}")
        end = body + payload_len
        return end if len(self._buffer) >= end else None
