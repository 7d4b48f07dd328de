"""What the ranks of one prefill instance say to each other about handoffs.

    rank 0, which has the scheduler                        every other rank
       │ OrderBegun ───────────────────────────────────────▶ │  it is being computed, by all ranks
       │ OrderComputed ─────────────────────────────────────▶ │  after each step: so far, and in these blocks
       │ OrderStopped ──────────────────────────────────────▶ │  no further chunk will be
       │ ◀───────────────────────────────────── SourceReleased │  once for each OrderBegun

Each direction keeps its order, and what a rank hears of a step it hears after its own part of that step is done. The
source blocks are rank 0's to hold: until its own writes are over and every other rank has released them.
"""

import msgspec

from lineclear.base.ids import BlockId
from lineclear.protocol.handoff.messages import PrefillWork
from lineclear.protocol.handoff.names import Count, Epoch, Positive


class _Message(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    """What all of them share: the attempt."""

    epoch: Epoch


class OrderBegun(_Message, frozen=True, tag="order_begun"):
    """rank 0 → others: a decode worker's order is obeyed."""

    work: PrefillWork
    num_blocks: Positive
    """Of the decode worker's memory."""


class OrderComputed(_Message, frozen=True, tag="order_computed"):
    """rank 0 → others: the KV of tokens [0, end) is in place on all ranks."""

    end: Positive
    first_block: Count
    """Index of the first of `block_ids` among the prompt's blocks."""
    block_ids: tuple[BlockId, ...]
    """Source blocks of what is new since the last of these, the same on every rank."""


class OrderStopped(_Message, frozen=True, tag="order_stopped"):
    """rank 0 → others: nothing more of it is computed."""


class SourceReleased(_Message, frozen=True, tag="source_released"):
    """another rank → rank 0: no write of this rank can read its source blocks any more."""


ToFollower = OrderBegun | OrderComputed | OrderStopped
ToLeader = SourceReleased
