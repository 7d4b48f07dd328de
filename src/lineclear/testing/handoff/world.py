"""The state of a world, and the small changes that moves are made of.

A write is physical and apart from what is reported about it:

| state      | the sender counts it as | can land                            |
|------------|-------------------------|-------------------------------------|
| `COUNTED`  | flying                  | not yet: the shell has not posted it |
| `POSTED`   | flying                  | yes                                 |
| `LANDED`   | flying                  | has landed                          |
| `STOPPED`  | flying                  | no: a fence stopped it              |
| `ADRIFT`   | unknown                 | yes                                 |
| `BEACHED`  | unknown                 | has landed                          |
| `ORPHANED` | its sender is gone      | yes, until that life is fenced      |
"""

from enum import StrEnum
from typing import NamedTuple

from lineclear.base.ids import WorkerId
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.protocol.handoff.receiver import Receiver
from lineclear.protocol.handoff.sender import Sender
from lineclear.testing.handoff.blocks import Blocks
from lineclear.testing.handoff.scenario import Budget

DECODE = WorkerId("decode")
PREFILL = WorkerId("prefill")


class RequestPhase(StrEnum):
    """Where a request stands, as the gateway knows it."""

    QUEUED = "queued"
    RUNNING = "running"
    """Its handoff is under way."""
    DECODING = "decoding"
    ENDED = "ended"
    LOST = "lost"
    """It ran on a decode life that is over, and nobody has ended it."""


class Request(NamedTuple):
    """One request in the gateway's ledger."""

    phase: RequestPhase = RequestPhase.QUEUED
    epoch: Epoch | None = None
    attempts: int = 1
    """Left, with the running one."""


class Landing(NamedTuple):
    """Bytes of a rank that are where they should be: the token at `position`."""

    epoch: Epoch
    peer: Peer
    position: int


class Decode(NamedTuple):
    """The decode worker."""

    life: int
    """As its epochs say."""
    memory: int
    """Which registration of memory its blocks are in."""
    next_number: int
    lives: tuple[int, ...]
    """Of each rank: the life that orders go to."""
    receivers: tuple[Receiver, ...]
    landed: frozenset[Landing]
    """For receivers that wait."""
    revoked: frozenset[Peer]
    """Living peers whose access is gone for good."""


class Source(NamedTuple):
    """Source blocks of one handoff at one rank."""

    epoch: Epoch
    computed: int
    """Tokens [0, computed) are computed; the forward pass holds the blocks while there are more to come."""
    end: int
    is_held: bool
    """The sender's reader hold."""


class Rank(NamedTuple):
    """A rank of the prefill instance."""

    sender: Sender
    queue: tuple[Epoch, ...]
    """Ordered, not begun."""
    sources: tuple[Source | None, ...]


class WriteState(StrEnum):
    """See the module's table."""

    COUNTED = "counted"
    POSTED = "posted"
    LANDED = "landed"
    STOPPED = "stopped"
    ADRIFT = "adrift"
    BEACHED = "beached"
    ORPHANED = "orphaned"


class Write(NamedTuple):
    """One write of one token."""

    epoch: Epoch
    peer: Peer
    write_id: int
    position: int
    block_id: int
    memory: int
    slot: int
    """Which of the rank's sources it reads."""
    state: WriteState


class World(NamedTuple):
    """Everything."""

    requests: tuple[Request, ...]
    decode: Decode
    blocks: Blocks
    ranks: tuple[Rank, ...]
    net: int
    """A bit for each message ever sent, as numbered by the network."""
    writes: tuple[Write, ...]
    """In order."""
    budget: Budget


def peer_of(rank: int, life: int) -> Peer:
    """Return the name of a rank's life."""
    return Peer(PREFILL, rank, life)


def with_request(world: World, index: int, request: Request) -> World:
    """Replace a request; all that have ended are alike."""
    if request.phase is RequestPhase.ENDED:
        request = Request(RequestPhase.ENDED, None, 0)
    return world._replace(requests=(*world.requests[:index], request, *world.requests[index + 1 :]))


def with_rank(world: World, index: int, rank: Rank) -> World:
    """Replace a rank."""
    return world._replace(ranks=(*world.ranks[:index], rank, *world.ranks[index + 1 :]))


def with_source(world: World, rank_index: int, slot: int, source: Source) -> World:
    """Replace a source; one that nobody holds is free."""
    rank = world.ranks[rank_index]
    kept = source if source.is_held or source.computed < source.end else None
    return with_rank(world, rank_index, rank._replace(sources=(*rank.sources[:slot], kept, *rank.sources[slot + 1 :])))


def with_write(world: World, write: Write, state: WriteState | None) -> World:
    """Change a write's state; with None it is over."""
    others = tuple(other for other in world.writes if other != write)
    return world._replace(writes=others if state is None else tuple(sorted((*others, write._replace(state=state)))))


def spend(world: World, **faults: int) -> World:
    """Take faults from the budget."""
    left = {name: getattr(world.budget, name) - count for name, count in faults.items()}
    return world._replace(budget=world.budget._replace(**left))
