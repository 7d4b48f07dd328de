import msgspec
import pytest

from lineclear.base.errors import InvariantError, PeerError
from lineclear.protocol.handoff.codec import decode_to_decode, decode_to_rank, encode
from lineclear.protocol.handoff.messages import (
    Abort,
    FailureReason,
    HandoffMessage,
    LineClear,
    PrefillOrder,
    WritesDone,
    WritesFailed,
)
from lineclear.protocol.handoff.names import MAX_RANKS, Epoch, Peer, end_of_life, writer_number
from lineclear.protocol.wire import MAX_MESSAGE_BYTES
from tests.unit.protocol.handoff_cases import RANK_0, RANK_1, epoch, work

TO_RANK = [PrefillOrder(epoch(1), RANK_0, work()), Abort(epoch(1), RANK_0)]
TO_DECODE = [
    WritesDone(epoch(1), RANK_0),
    WritesDone(epoch(1), RANK_1),
    LineClear(epoch(1), RANK_0),
    WritesFailed(epoch(1), RANK_0, FailureReason.WRITE_UNKNOWN),
]


@pytest.mark.parametrize("message", TO_RANK)
def test_messages_to_ranks_survive_the_wire_and_are_not_for_decode(message: HandoffMessage) -> None:
    data = encode(message)
    assert decode_to_rank(data) == message
    assert hash(decode_to_rank(data)) == hash(message)
    with pytest.raises(PeerError):
        decode_to_decode(data)


@pytest.mark.parametrize("message", TO_DECODE)
def test_messages_to_decode_survive_the_wire_and_are_not_for_ranks(message: HandoffMessage) -> None:
    data = encode(message)
    assert decode_to_decode(data) == message
    with pytest.raises(PeerError):
        decode_to_rank(data)


def _changed(**fields: object) -> bytes:
    raw = msgspec.msgpack.decode(encode(TO_RANK[0]))
    raw["work"] |= fields
    return msgspec.msgpack.encode(raw)


@pytest.mark.parametrize(
    "fields",
    [
        {"start": 4},
        {"start": -1},
        {"block_ids": []},
        {"prompt_token_ids": []},
        {"prompt_token_ids": [1]},
        {"prompt_token_ids": [2**32]},
        {"memory_key": 5},
        {"colour": "blue"},
    ],
)
def test_an_order_that_makes_no_sense_is_the_peers_error(fields: dict[str, object]) -> None:
    assert decode_to_rank(_changed()) == TO_RANK[0]
    with pytest.raises(PeerError, match="handoff message of"):
        decode_to_rank(_changed(**fields))


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode({"type": "abort"}), b"x" * 10])
def test_nonsense_is_the_peers_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        decode_to_rank(data)


def test_what_is_too_large_is_neither_sent_nor_read() -> None:
    with pytest.raises(PeerError, match="allowed"):
        decode_to_decode(bytes(MAX_MESSAGE_BYTES + 1))
    huge = PrefillOrder(epoch(1), RANK_0, msgspec.structs.replace(work(), memory_key=bytes(MAX_MESSAGE_BYTES)))
    with pytest.raises(InvariantError, match="PrefillOrder takes"):
        encode(huge)


def test_epochs_are_ordered_by_life_then_number() -> None:
    assert epoch(9, life=1) < end_of_life(epoch(9, life=1)) < epoch(1, life=2)
    assert epoch(1) < epoch(2)


def test_a_message_is_not_equal_to_one_about_another_attempt_or_life() -> None:
    assert LineClear(epoch(1), RANK_0) != LineClear(epoch(2), RANK_0)
    assert LineClear(epoch(1), RANK_0) != Abort(epoch(1), RANK_0)
    assert Epoch(RANK_0.worker_id, 0, 5) != RANK_0


def test_writers_of_all_attempts_and_ranks_have_numbers_of_their_own() -> None:
    peers = [Peer(RANK_0.worker_id, rank, life) for rank in (0, 1, MAX_RANKS - 1) for life in (0, 1)]
    numbers = {writer_number(epoch(number), peer) for number in range(1, 50) for peer in peers}
    assert len(numbers) == 49 * 3
    assert min(numbers) > 2**48
    with pytest.raises(InvariantError, match="rank"):
        writer_number(epoch(1), Peer(RANK_0.worker_id, MAX_RANKS, 0))
