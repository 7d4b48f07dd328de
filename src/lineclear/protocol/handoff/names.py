"""Who takes part in a handoff: attempts and lives.

A *life* is one run of a process together with its transport session. The lives of one worker grow and are never reused;
tearing the session down for good ends a life as a crash does. Every message names an epoch and a peer, in both
directions, and is ignored by everyone whom it does not name (R5).
"""

from typing import Annotated, Final

import msgspec

from lineclear.base.errors import InvariantError
from lineclear.base.ids import WorkerId

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]

MAX_RANKS: Final = 256
"""Ranks of one prefill instance, at most; it bounds what a writer's number must tell apart."""

_FIRST_HANDOFF_WRITER: Final = 1 << 48
"""Forward passes number their writers from 0; a pass each microsecond would take nine years to get here."""


class Epoch(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One attempt at a handoff, and its whole identity: a retry, or a second decode rank, has an epoch of its own.

    Epochs of one decode worker are ordered by life, then number. Numbers start at 1 in each life, and orders leave
    in their order.
    """

    worker_id: WorkerId
    """The decode worker."""
    life: Count
    number: Count


class Peer(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One life of one rank of a prefill instance."""

    worker_id: WorkerId
    """The prefill instance."""
    rank: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    life: Count


def end_of_life(epoch: Epoch) -> Epoch:
    """The bound between an epoch's life and the next: newer than any epoch of the one, older than any of the other."""
    return Epoch(epoch.worker_id, epoch.life + 1, 0)


def writer_number(epoch: Epoch, peer: Peer) -> int:
    """The id of a peer's writer hold in the block pool of the epoch's decode life: one for each attempt and rank.

    Raises: InvariantError if the rank is out of range.
    """
    if not 0 <= peer.rank < MAX_RANKS:
        raise InvariantError(f"rank: got {peer.rank}, allowed: 0 to {MAX_RANKS - 1}")
    return _FIRST_HANDOFF_WRITER + epoch.number * MAX_RANKS + peer.rank
