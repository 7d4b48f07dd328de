"""What the ranks of one instance say to each other beside handoffs: MessagePack with a "type" tag, nothing ignored.

    rank 0                                              every other rank
       │ ◀───────────────────────────────────────── RankHello │  who it is
       │ RankWelcome ─────────────────────────────────────▶ │  where the communicator's ranks meet
       │ ◀─────────────────────────────────────── RankArrived │  at a point that all have to reach
       │ GoOn ────────────────────────────────────────────▶ │  all have
       │ ◀───────────────────────────────────────── RankReady │  built; where decode workers reach it
       │ ◀──────────────────────────────────────── FilesFound │  what is on its disk: what rank 0 lacks is deleted
       │ SequenceBegun, RunPlan, SequenceEnded ───────────▶ │
       │ BeginCopies ─────────────────────────────────────▶ │
       │ ◀───────────────────────────────────────── CopyEnded │  once for each that has an end
       │ ◀────────────────────────────────────────── AskLeave │  somebody wants this rank to end, and so the instance
       │ Leave ───────────────────────────────────────────▶ │  the last one

Each direction keeps its order.
"""

from typing import Annotated, Final, TypeVar

import msgspec

from lineclear.base.errors import InvariantError, PeerError
from lineclear.base.ids import SequenceId
from lineclear.kv.copies import Copy, CopyEnd, CopyId
from lineclear.kv.prefix_key import PrefixKey
from lineclear.protocol.handoff.names import Count, Positive
from lineclear.protocol.handoff.ranks import OrderBegun, OrderComputed, OrderStopped, SourceReleased
from lineclear.protocol.wire import MAX_MESSAGE_BYTES, WIRE_VERSION
from lineclear.schedule.plan import Chunk


class _Message(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """What all of them share: nothing."""


class RankHello(_Message, frozen=True, kw_only=True, tag="rank_hello"):
    """The first message of a rank that follows."""

    version: int = WIRE_VERSION
    rank: Positive
    num_ranks: Positive
    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class RankWelcome(_Message, frozen=True, kw_only=True, tag="rank_welcome"):
    """The answer, once all ranks are there."""

    worker_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    """Of the instance: all ranks have rank 0's."""
    life: Count
    store: str
    """Where the communicator's ranks find each other: an endpoint; `unix:` names a file that they share."""


class RankRefusal(_Message, frozen=True, tag="rank_refusal"):
    """The other answer: why this rank is not taken."""

    reason: str


class RankArrived(_Message, frozen=True, tag="rank_arrived"):
    """A rank has loaded the model, or as much else as it does at its own pace."""


class GoOn(_Message, frozen=True, tag="go_on"):
    """All ranks have arrived: what they do next together need not wait for anybody's disk."""


class RankReady(_Message, frozen=True, tag="rank_ready"):
    """A rank is built."""

    peer_endpoint: str


class FilesFound(_Message, frozen=True, tag="files_found"):
    """Some of the files that a rank has found on disk at the start; without rank 0's they are of no use."""

    keys: list[PrefixKey]


class SequenceBegun(_Message, frozen=True, tag="sequence_begun"):
    """A sequence of which chunks will come."""

    sequence_id: SequenceId
    token_ids: list[int]


class SequenceEnded(_Message, frozen=True, tag="sequence_ended"):
    """No more of them will."""

    sequence_id: SequenceId


class RunPlan(_Message, frozen=True, tag="run_plan"):
    """Compute this, with all ranks."""

    chunks: tuple[Chunk, ...]
    tables: tuple[bytes, ...]
    """For each chunk its sequence's blocks, as `BlockTable.packed`."""
    num_tokens: int
    load_ids: tuple[CopyId, ...]


class BeginCopies(_Message, frozen=True, tag="begin_copies"):
    """Copy this between tiers."""

    copies: tuple[Copy, ...]


class CopyEnded(_Message, frozen=True, tag="copy_ended"):
    """A rank's own part of a copy has ended."""

    end: CopyEnd


class AskLeave(_Message, frozen=True, tag="ask_leave"):
    """A rank was asked to leave: all of the instance has to, when it has finished what it does."""


class Leave(_Message, frozen=True, tag="leave"):
    """Rank 0 has nothing left to do, and ends."""


FromLeader = (
    RankWelcome
    | RankRefusal
    | GoOn
    | SequenceBegun
    | SequenceEnded
    | RunPlan
    | BeginCopies
    | Leave
    | OrderBegun
    | OrderComputed
    | OrderStopped
)
FromFollower = RankHello | RankArrived | RankReady | FilesFound | CopyEnded | SourceReleased | AskLeave

_T = TypeVar("_T")

_ENCODER: Final = msgspec.msgpack.Encoder()
_FROM_LEADER: Final = msgspec.msgpack.Decoder(FromLeader)
_FROM_FOLLOWER: Final = msgspec.msgpack.Decoder(FromFollower)


def encode(message: FromLeader | FromFollower) -> bytes:
    """Return a message's bytes.

    Raises: InvariantError if the receiver would refuse it for its size.
    """
    data = _ENCODER.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvariantError(f"{type(message).__name__} takes {len(data)} bytes, allowed: {MAX_MESSAGE_BYTES}")
    return data


def decode_from_leader(data: bytes) -> FromLeader:
    """Read a message of rank 0. Raises: PeerError if it is unknown or malformed."""
    return _decode(_FROM_LEADER, data)


def decode_from_follower(data: bytes) -> FromFollower:
    """Read a message of another rank. Raises: PeerError if it is unknown or malformed."""
    return _decode(_FROM_FOLLOWER, data)


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PeerError(f"rank message of {len(data)} bytes: {error}") from error
