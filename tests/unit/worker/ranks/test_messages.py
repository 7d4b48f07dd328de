"""What ranks say to each other: everything comes out as it went in, and nonsense is an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.errors import PeerError
from lineclear.base.ids import BlockId, SequenceId
from lineclear.kv.copies import CopyEnd, CopyFailure, CopyId, DiskDelete, DiskWrite, Load, Offload
from lineclear.kv.prefix_key import PrefixKey
from lineclear.schedule.plan import Chunk
from lineclear.worker.ranks.messages import (
    AskLeave,
    BeginCopies,
    CopyEnded,
    FilesFound,
    FromFollower,
    FromLeader,
    GoOn,
    Leave,
    RankArrived,
    RankHello,
    RankReady,
    RankRefusal,
    RankWelcome,
    RunPlan,
    SequenceBegun,
    SequenceEnded,
    decode_from_follower,
    decode_from_leader,
    encode,
)

BLOCKS = (BlockId(3), BlockId(4))
KEY = PrefixKey(b"k" * 32)
CHUNK = Chunk(SequenceId(1), 0, 8, 0, samples=False, num_next_drafts=0)


@pytest.mark.parametrize(
    "message",
    [
        RankWelcome(worker_id="p0", life=3, store="unix:/run/p0.store"),
        RankRefusal("why"),
        GoOn(),
        SequenceBegun(SequenceId(1), [1, 2, 3]),
        SequenceEnded(SequenceId(1)),
        RunPlan((CHUNK,), (b"\0" * 16,), 8, (CopyId(2),)),
        BeginCopies((Load(CopyId(0), BLOCKS, BLOCKS), Offload(CopyId(1), BLOCKS, BLOCKS), DiskDelete((KEY,)))),
        BeginCopies((DiskWrite(CopyId(2), (KEY,), BLOCKS[:1]),)),
        Leave(),
    ],
)
def test_rank_0_is_understood(message: FromLeader) -> None:
    assert decode_from_leader(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        RankHello(rank=1, num_ranks=2, worker_id="p0"),
        RankArrived(),
        RankReady("unix:/run/p0.1"),
        FilesFound([KEY]),
        CopyEnded(CopyEnd(CopyId(3), 1, CopyFailure.FULL)),
        AskLeave(),
    ],
)
def test_the_others_are_understood(message: FromFollower) -> None:
    assert decode_from_follower(encode(message)) == message


@given(st.binary(max_size=64))
def test_whatever_comes_is_a_message_or_an_error(data: bytes) -> None:
    for decode in (decode_from_leader, decode_from_follower):
        try:
            message = decode(data)
        except PeerError:
            continue
        assert encode(message)


def test_what_only_the_other_side_says_is_an_error() -> None:
    with pytest.raises(PeerError):
        decode_from_leader(encode(RankArrived()))
    with pytest.raises(PeerError):
        decode_from_follower(encode(Leave()))
