"""KV as one pass of one rank sees it, whatever the layout: the `KvCache` that the model takes, and its phases.

    begin(layers) ─▶ the model writes and reads ─▶ finish
                                 └── an error ───▶ abort
    …  once for the model's layers, once for the draft layer; then steps that draft ahead (`step_view`), then `close`

Every rank goes through the same phases, and in each of them begins the same transfers; `abort` begins those that are
left, with the error.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Protocol

from torch import Tensor

from lineclear.base.errors import RankError
from lineclear.base.ids import SequenceId
from lineclear.engine.batch import PreparedChunk
from lineclear.engine.readiness import Readiness
from lineclear.kv.block_table import BlockTable
from lineclear.model.batch import KvCache, Part
from lineclear.parallel.hand import Hand
from lineclear.parallel.planning.deal import Stripe


class PassKv(KvCache, Protocol):
    """One pass's KV."""

    @property
    def hand(self) -> Hand:
        """What this rank computes, with the slots of this KV."""
        ...

    @property
    def tables(self) -> Mapping[SequenceId, BlockTable]:
        """The sequences' blocks, as this KV numbers them."""
        ...

    def begin(self, layers: Items[int]) -> None:
        """The model is about to run over these layers.

        Order: the first phase is the model's own layers.
        """
        ...

    def write(self, layer: int, part: Part, slot_mapping: Tensor, values: Tensor) -> None:
        """Take this rank's rows; those of all ranks are in place when the part is read."""
        ...

    def read(self, layer: int, part: Part) -> Tensor:
        """Wait until all that a pass may read of the layer's part is there, then give it.

        Raises: RankError of a rank that could not give its share.
        """
        ...

    def finish(self) -> None:
        """The model has run over the phase's layers: the new KV is where it belongs."""
        ...

    def abort(self, error: RankError) -> None:
        """This rank cannot go on: take part in what the others wait for, with the error."""
        ...

    def step_view(self) -> KvCache:
        """The draft layer's KV for steps that every rank computes alike."""
        ...

    def close(self) -> None:
        """The pass is over: nothing of it runs any more when this returns."""
        ...


class RankKv(Protocol):
    """The KV of one rank, in one of the layouts."""

    def open(self, chunks: Items[PreparedChunk], hands: Items[Items[Stripe]], readiness: Readiness) -> PassKv:
        """Begin a pass over chunks that were dealt to the ranks."""
        ...
