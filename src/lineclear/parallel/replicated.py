"""The replicated layout: every rank stores every layer, and writes the new rows of all ranks."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from typing import TypeAlias

import torch
from torch import Tensor

from lineclear.base.errors import RankError
from lineclear.base.ids import SequenceId
from lineclear.engine.batch import PreparedChunk
from lineclear.engine.readiness import Readiness
from lineclear.engine.store import PARTS, KvStore, KvView
from lineclear.kv.block_table import BlockTable
from lineclear.model.batch import KvCache, Part
from lineclear.model.config import GlmConfig
from lineclear.parallel.communicator import Communicator
from lineclear.parallel.hand import Hand, take_hand
from lineclear.parallel.meter import Meter
from lineclear.parallel.planning.deal import Stripe
from lineclear.parallel.rows import PartWidths, RowGathers

MakeGathers: TypeAlias = Callable[[Items[int], Hand], RowGathers]


class ReplicatedKv:
    """One rank's.

    Args:
        config: the model's.
        store: all layers.
        dtype: of the store.
        communicator: all ranks'.
        meter: hears of waits.
    """

    def __init__(
        self, config: GlmConfig, store: KvStore, dtype: torch.dtype, communicator: Communicator, meter: Meter
    ) -> None:
        self._config = config
        self._store = store
        self._like = torch.empty(0, dtype=dtype, device=store.device)
        self._communicator = communicator
        self._meter = meter

    def open(self, chunks: Items[PreparedChunk], hands: Items[Items[Stripe]], readiness: Readiness) -> "ReplicatedPass":
        """Begin a pass; it reads the store with this readiness."""
        store = self._store
        tables = [each.sequence.block_table for each in chunks]
        hand = take_hand(
            chunks, tables, hands, self._communicator.rank, block_size=store.block_size, device=store.device
        )
        by_sequence = {each.sequence.sequence_id: each.sequence.block_table for each in chunks}
        return ReplicatedPass(hand, by_sequence, store.view(readiness), self._gathers)

    def _gathers(self, layers: Items[int], hand: Hand) -> RowGathers:
        widths = {layer: part_widths(self._config, layer) for layer in layers}
        return RowGathers(self._communicator, widths, hand.counts, self._like, self._meter)


class ReplicatedPass:
    """One pass's."""

    def __init__(
        self, hand: Hand, tables: Mapping[SequenceId, BlockTable], view: KvView, make_gathers: MakeGathers
    ) -> None:
        self.hand = hand
        self.tables = tables
        self._view = view
        self._make_gathers = make_gathers
        self._gathers = make_gathers((), hand)

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._view.block_size

    def begin(self, layers: Items[int]) -> None:
        """Await these layers' rows."""
        self._gathers = self._make_gathers(layers, self.hand)

    def write(self, layer: int, part: Part, slot_mapping: Tensor, values: Tensor) -> None:  # noqa: ARG002 - the hand has all ranks' slots
        """Give the own rows to all ranks."""
        self._gathers.give(layer, part, values[: self.hand.num_own])

    def read(self, layer: int, part: Part) -> Tensor:
        """Write all ranks' rows to the store, and read it."""
        for gathered, rows in self._gathers.take(layer).items():
            self._view.write(layer, gathered, self.hand.slots, rows)
        return self._view.read(layer, part)

    def finish(self) -> None:
        """Everything was read, and so written."""
        self._gathers.require_done()

    def abort(self, error: RankError) -> None:
        """Give the error in place of the rows that are left."""
        self._gathers.fail_rest(error)
        self._gathers.wait_all()

    def step_view(self) -> KvCache:
        """The store."""
        return self._view

    def close(self) -> None:
        """Nothing runs."""


def part_widths(config: GlmConfig, layer: int) -> PartWidths:
    """The parts of a layer, and how many values each caches of a token."""
    return {part: width for part in PARTS if (width := config.part_width(layer, part)) is not None}
