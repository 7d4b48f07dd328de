"""How large a world is, which faults it may have, and what its environment guarantees."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Budget(NamedTuple):
    """The faults that are left in a history."""

    rank_crashes: int = 0
    decode_crashes: int = 0
    unknowns: int = 0
    errors: int = 0
    failures: int = 0


ONE_OF_EACH = Budget(1, 1, 1, 1, 1)


class NetworkKind(StrEnum):
    """How messages travel."""

    ANY = "any"
    """Lost, doubled and overtaken without limit."""
    IN_ORDER = "in order"
    """As ANY, but the first orders and aborts of each attempt reach a rank in epoch order."""
    EXACT = "exact"
    """Each message arrives once, in any order, and nobody asks again for what is lost."""


@dataclass(frozen=True)
class Scenario:
    """One world to explore."""

    name: str
    num_ranks: int = 1
    num_requests: int = 2
    num_blocks: int = 1
    """Destination blocks of the decode worker."""
    num_sources: int = 1
    """Handoffs for which a rank has source blocks."""
    num_tokens: int = 1
    """Of each prompt; each is a chunk, and a write, of its own."""
    block_size: int | None = None
    """None: a handoff takes one block."""
    num_attempts: int = 1
    budget: Budget = field(default=Budget())
    stops: bool = True
    """Whether clients leave and deadlines pass, at any moment."""
    live_fences: bool = False
    """Whether decode may revoke a living rank's access; the rank then has to start anew."""
    forgets: bool = True
    """Whether ranks forget handoffs that succeeded."""
    network: NetworkKind = NetworkKind.ANY


@dataclass(frozen=True)
class Physics:
    """What the environment guarantees; negative controls weaken it."""

    strict: bool = True
    """Whether any landing without its hold counts, not only one in a block that another handoff has."""
    fresh_memory: bool = True
    """A new decode life exposes memory that no older life exposed."""
    fresh_life: bool = True
    """... and says so in its epochs."""
    fence_stops_writes: bool = True
    fence_is_for_good: bool = True
    """What a fenced life posts later does not land either."""
    error_means_ended: bool = True
    """A write reported as failed cannot land any more."""
    hold_outlives_request: bool = True
    hold_outlives_timer: bool = True
    gateway_ends_orphans: bool = True
    """A decode life's end is the end of every request that ran there."""
    decode_death_is_told: bool = True
    unknown_is_excused: bool = True
    """Blocks may wait for the late answer of a living rank."""
    refusals_are_earned: bool = False
    """Whether an order is refused only after its attempt was given up."""
