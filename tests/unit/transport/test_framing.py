import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.errors import PeerError
from lineclear.transport.framing import HEARTBEAT, MAX_MESSAGE_BYTES, FrameDecoder, frame


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 9)))
def test_payloads_survive_any_cut_of_the_stream(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame(payload) if payload else HEARTBEAT for payload in payloads)
    decoder, received = FrameDecoder(), []
    for length in cuts:
        received += decoder.feed(stream[:length])
        stream = stream[length:]
    received += decoder.feed(stream)
    assert received == [payload for payload in payloads if payload]


def test_an_incomplete_frame_waits() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(frame(b"abc")[:-1]) == []
    assert decoder.feed(b"c") == [b"abc"]


def test_the_longest_allowed_frame_passes_and_a_longer_one_is_refused_by_its_header() -> None:
    decoder = FrameDecoder(max_message_bytes=3)
    assert decoder.feed(frame(b"abc")) == [b"abc"]
    with pytest.raises(PeerError, match="4 bytes is announced, allowed at most 3"):
        decoder.feed((4).to_bytes(4, "big"))


@pytest.mark.parametrize("length", [0, MAX_MESSAGE_BYTES + 1])
def test_what_a_peer_would_refuse_is_not_framed(length: int) -> None:
    with pytest.raises(ValueError, match="payload"):
        frame(bytes(length))
