"""The LayerSplit layout: each rank stores some layers, and a pass reads what their owners bring into staging.

Of each layer a pass reads the index part, then the latent part, and then it computes experts and comes to the next:

    layer l     write, write   read index        read latent              │ l + 1: write
                ────────────   ───────────────   ──────────────────────── │ ─────────────
    lent        latent l - 1   index l           latent l                 │
    released    before l                         index l                  │ latent l
    on its way  index l, latent l ─────────────▶ index l + 1, latent l + 1 ─────────────▶    with two latent buffers

so that index parts travel behind the attention and the experts of the layer before, latent parts behind those or, with
one buffer, behind their own layer's indexer. A layer without an indexer has no index part, and nothing of it travels.

The owner copies the running batch's blocks out of its store, where `KvStore.read` waits for its own tiers, and only
then sends; its latent part waits until its index part was sent. The new rows of all ranks are gathered, and written
into staging by everybody and into the store by the owner, after the broadcast of the same part and before any read.

Invariants:
1. What a pass reads comes from `read` alone, and is there: the broadcast has ended, and the new rows are in place.
2. A buffer is released after the last read of its layer's part, and not before: index parts when the layer's latent
   part is read, latent parts when the next layer writes, the draft layer's when the pass is over.
3. The store is written at (layer, part) only after the broadcast of (layer, part) has ended.

Legend: T tokens of the plan, O of this rank's hand.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError, RankError
from lineclear.base.ids import SequenceId
from lineclear.engine.batch import PreparedChunk
from lineclear.engine.readiness import Readiness
from lineclear.engine.store import KvStore
from lineclear.kv.block_table import BlockTable
from lineclear.model.batch import KvCache, Part
from lineclear.model.config import GlmConfig
from lineclear.parallel.communicator import Cargo, Communicator, Lane, Pending
from lineclear.parallel.hand import Hand, gathered_slots, take_hand
from lineclear.parallel.meter import Happening, Meter
from lineclear.parallel.planning.deal import Stripe
from lineclear.parallel.planning.ownership import LayerOwners
from lineclear.parallel.planning.staging import Run, StagingMap, choose_depths, map_staging
from lineclear.parallel.replicated import part_widths
from lineclear.parallel.rows import RowGathers, failure_of
from lineclear.parallel.staging import Buffers, Item, Staging, carve

LANES: Mapping[Part, Lane] = {"index": Lane.INDEX, "latent": Lane.LATENT}

BeforeFill = Callable[[int, Part], None]


def _at_once(_layer: int, _part: Part) -> None:
    """No delay."""


@dataclass(frozen=True, slots=True)
class SplitParts:
    """What the passes of one rank share."""

    config: GlmConfig
    owners: LayerOwners
    store: KvStore
    """The layers of this rank alone."""
    memory: Tensor
    """Staging: bytes, on the store's device."""
    dtype: torch.dtype
    communicator: Communicator
    meter: Meter
    before_fill: BeforeFill = _at_once
    """Called on the owner before it collects a part's blocks; tests delay and stop it with that."""

    @property
    def widths(self) -> Mapping[Part, int]:
        """Values that a token has in each part of a layer that has both."""
        return {"latent": self.config.latent_width, "index": self.config.index_head_dim}


@dataclass(frozen=True, slots=True)
class Places:
    """Where one pass's rows and blocks are.

    Shapes: pool_slots: [T] int64, of all ranks' rows in the owners' stores, in gathered order.
    """

    hand: Hand
    tables: Mapping[SequenceId, BlockTable]
    """In staging."""
    staging: StagingMap
    pool_slots: Tensor


class LayerSplitKv:
    """One rank's.

    Args:
        parts: what its passes share.
        drafts: whether passes run the draft layer, too.
        make_pass: what passes are; the lab takes guards out of it.
    """

    def __init__(self, parts: SplitParts, *, drafts: bool, make_pass: "type[LayerSplitPass] | None" = None) -> None:
        self._parts = parts
        self._drafts = drafts
        self._make_pass = make_pass or LayerSplitPass

    def open(self, chunks: Items[PreparedChunk], hands: Items[Items[Stripe]], readiness: Readiness) -> "LayerSplitPass":
        """Begin a pass; owners wait with this readiness for what they send.

        Raises: InvariantError if staging has no room for the batch.
        """
        parts, block_size = self._parts, self._parts.store.block_size
        placed = map_staging([_run(each, block_size) for each in chunks], parts.config.index_topk, block_size)
        tables = [BlockTable(table) for table in placed.tables]
        hand = take_hand(
            chunks, tables, hands, parts.communicator.rank, block_size=block_size, device=parts.store.device
        )
        by_sequence = {each.sequence.sequence_id: table for each, table in zip(chunks, tables, strict=True)}
        pool_slots = gathered_slots(
            chunks,
            [each.sequence.block_table for each in chunks],
            hands,
            block_size=block_size,
            device=parts.store.device,
        )
        return self._make_pass(parts, Places(hand, by_sequence, placed, pool_slots), readiness, drafts=self._drafts)


class LayerSplitPass:
    """One pass's."""

    make_staging: ClassVar[type[Staging]] = Staging
    """The lab takes guards out of it."""

    def __init__(self, parts: SplitParts, places: Places, readiness: Readiness, *, drafts: bool) -> None:
        self.hand = places.hand
        self.tables = places.tables
        self._parts = parts
        self._pool_slots = places.pool_slots
        self._readiness = readiness
        self._draft_layer = parts.config.num_hidden_layers
        self._like = torch.empty(0, dtype=parts.dtype, device=parts.store.device)
        self._block_ids = torch.tensor(places.staging.prefix_block_ids, dtype=torch.int64).to(parts.store.device)
        schedule = _schedule(parts.config, places.staging, drafts=drafts)
        self._staging = self.make_staging(schedule, self._carve(places.staging.num_blocks), self._bring, parts.meter)
        self._gathers = RowGathers(parts.communicator, {}, self.hand.counts, self._like, parts.meter)
        self._rows: dict[Part, Tensor] = {}
        """Of the layer that the model is in: those that are there, and not in their place yet."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._parts.store.block_size

    def begin(self, layers: Items[int]) -> None:
        """Await these layers' rows, and begin what is read first."""
        parts = self._parts
        widths = {layer: part_widths(parts.config, layer) for layer in layers}
        self._gathers = RowGathers(parts.communicator, widths, self.hand.counts, self._like, parts.meter)
        self._staging.advance()

    def write(self, layer: int, part: Part, slot_mapping: Tensor, values: Tensor) -> None:  # noqa: ARG002 - the hand has all ranks' slots
        """Give the own rows to all ranks; the layers before are read no more."""
        self._release_before(layer)
        self._gathers.give(layer, part, values[: self.hand.num_own])

    def read(self, layer: int, part: Part) -> Tensor:
        """Wait for the owner's blocks and all ranks' rows, put those in place, and give the staging buffer."""
        if part == "latent" and self._parts.config.has_indexer(layer):
            self._settle(layer, "index")  # a rank whose rows score nothing has not read it
            if layer != self._draft_layer:
                self._staging.release(layer, "index")
                self._staging.advance()
        return self._settle(layer, part)

    def finish(self) -> None:
        """Every part was read, and so is in place; the last layer's are read no more."""
        self._gathers.require_done()
        self._release_before(self._draft_layer)
        self._staging.require_begun()

    def abort(self, error: RankError) -> None:
        """Begin what is left with the error."""
        self._gathers.fail_rest(error)
        self._staging.fail_rest(error)
        self._gathers.wait_all()
        self._staging.wait_all()

    def step_view(self) -> KvCache:
        """The draft layer's staging: later passes write again what draft steps write, so the owner needs none of it."""
        return _StepView(self._staging, self.block_size)

    def close(self) -> None:
        """Wait for what nobody has read."""
        self._staging.wait_all()

    def _release_before(self, layer: int) -> None:
        for earlier, part in self._staging.lent_before(layer):
            self._staging.release(earlier, part)
        self._staging.advance()

    def _settle(self, layer: int, part: Part) -> Tensor:
        """Put the part's new rows behind what its owner has brought."""
        buffer = self._staging.wait(layer, part)
        self._rows |= self._gathers.take(layer)
        rows = self._rows.pop(part, None)
        if rows is not None:
            buffer.index_copy_(0, self.hand.slots, rows)
            if self._owns(layer):
                self._parts.store.write(layer, part, self._pool_slots, rows)
        return buffer

    def _bring(self, item: Item, buffer: Tensor, error: RankError | None) -> Pending:
        """Begin an item's broadcast."""
        parts, block_size = self._parts, self.block_size
        layer, part, num_blocks = item
        target = buffer[block_size : (num_blocks + 1) * block_size]
        index_sent = self._staging.pending_of(layer, "index") if part == "latent" else None

        def fill() -> None:
            if error is not None:
                raise error
            parts.before_fill(layer, part)
            if index_sent is not None:
                failure_of(index_sent)
            self._fill(layer, part, num_blocks, target)

        return parts.communicator.broadcast(LANES[part], parts.owners.ranks[layer], target, fill, Cargo(layer, part))

    def _fill(self, layer: int, part: Part, num_blocks: int, target: Tensor) -> None:
        """On the owner, in the lane's thread: collect the batch's blocks. Mutates: target."""
        meter, lane = self._parts.meter, LANES[part].value
        with meter.span(Happening.LOAD, lane, layer, part):
            slots = self._read_store(layer, part)
        with meter.span(Happening.FILL, lane, layer, part, target.nbytes):
            blocks = slots.view(self._parts.store.num_blocks, -1)
            torch.index_select(blocks, 0, self._block_ids[:num_blocks], out=target.view(num_blocks, -1))

    def _read_store(self, layer: int, part: Part) -> Tensor:
        """Wait for this rank's own tiers, as every reader does."""
        return self._parts.store.read(layer, part, self._readiness)

    def _owns(self, layer: int) -> bool:
        return self._parts.owners.ranks[layer] == self.hand.rank

    def _carve(self, num_blocks: int) -> Buffers:
        """This pass's buffers; the slots of block 0 are zero."""
        parts, num_rows = self._parts, num_blocks * self.block_size
        row_bytes = {part: width * parts.dtype.itemsize for part, width in parts.widths.items()}
        depths = choose_depths(parts.memory.nbytes, num_rows, row_bytes["latent"], row_bytes["index"])
        if depths is None:
            raise InvariantError(f"staging of {parts.memory.nbytes} bytes has no room for {num_rows} tokens")
        buffers = carve(parts.memory, self._like, num_rows, parts.widths, depths)
        for of_part in buffers.values():
            for buffer in of_part:
                buffer[: self.block_size].zero_()
        return buffers


class _StepView:
    """The draft layer as draft steps see it."""

    def __init__(self, staging: Staging, block_size: int) -> None:
        self._staging = staging
        self.block_size = block_size

    def write(self, layer: int, part: Part, slot_mapping: Tensor, values: Tensor) -> None:
        """Put values into staging."""
        self._staging.wait(layer, part).index_copy_(0, slot_mapping, values)

    def read(self, layer: int, part: Part) -> Tensor:
        """Read staging."""
        return self._staging.wait(layer, part)


def _schedule(config: GlmConfig, placed: StagingMap, *, drafts: bool) -> list[Item]:
    """All that a pass reads, in order."""
    schedule: list[Item] = []
    for layer in range(config.num_cache_layers if drafts else config.num_hidden_layers):
        is_draft = layer == config.num_hidden_layers
        if config.has_indexer(layer):
            num_blocks = placed.num_draft_index_blocks if is_draft else placed.num_index_blocks
            schedule.append(Item(layer, "index", num_blocks))
        schedule.append(Item(layer, "latent", placed.num_prefix_blocks))
    return schedule


def _run(prepared: PreparedChunk, block_size: int) -> Run:
    chunk = prepared.chunk
    reach = chunk.end + max(0, chunk.num_next_drafts - 1)
    return Run(prepared.sequence.block_table.span(0, -(-reach // block_size)), chunk.start, chunk.end, reach)
