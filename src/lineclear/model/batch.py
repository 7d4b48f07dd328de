"""What one forward pass works on. The engine builds it, the model reads it.

Legend: T tokens of the batch, S segments, K = index_topk, D = hidden_size.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Part = Literal["latent", "index"]
"""The two things a layer caches: the MLA latent with its rope key, and the indexer's key."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens `[start, end)` of a batch that belong to one sequence.

    `context_len` counts the sequence's tokens up to and including the segment's last one, so the segment's positions
    are `[context_len - (end - start), context_len)`. `block_table` is int64 and covers at least these positions.
    """

    start: int
    end: int
    context_len: int
    block_table: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens of the segment."""
        return self.end - self.start

    @property
    def first_position(self) -> int:
        """Position of the segment's first token in its sequence."""
        return self.context_len - self.num_tokens


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one forward pass, ordered by segment; the segments cover `[0, T)` without gaps.

    Shapes: token_ids, positions, slot_mapping: [T] int64; token t's KV goes to `slot_mapping[t]`.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch."""
        return self.token_ids.shape[0]


@dataclass(frozen=True, slots=True)
class Selection:
    """The slots that each token attends to, ascending by position.

    Shapes: slots: [T, K] int64; beyond: [T, 1, K] bool, the places that hold no slot, or None where every place of
    every token holds one. Those places name the sequence's first slot, which the token attends to anyway.
    """

    slots: Tensor
    beyond: Tensor | None

    def rows(self, token_idxs: Tensor) -> "Selection":
        """The selection of some tokens. Shapes: token_idxs: [R] int64."""
        beyond = None if self.beyond is None else self.beyond.index_select(0, token_idxs)
        return Selection(self.slots.index_select(0, token_idxs), beyond)

    def places_beyond(self) -> Tensor:
        """`beyond`, written out where it is None."""
        if self.beyond is not None:
            return self.beyond
        return torch.zeros_like(self.slots, dtype=torch.bool).unsqueeze(1)


@dataclass(frozen=True, slots=True)
class DraftOutput:
    """What the draft layer computed.

    Shapes: hidden: [T, D], after the draft layer's own last norm; it feeds both `logits` and the next draft step.
    `selection` may be passed back, row by row, to the later steps of one draft when `index_share_for_mtp_iteration`.
    """

    hidden: Tensor
    selection: Selection


class KvCache(Protocol):
    """A KV store as one forward pass sees it; reading waits until the layer's part is ready."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        ...

    def write(self, layer: int, part: Part, slot_mapping: Tensor, values: Tensor) -> None:
        """Put `values` [T, width] at `slot_mapping` [T]."""
        ...

    def read(self, layer: int, part: Part) -> Tensor:
        """The part's tensor, [num_slots, width]; never to be written through."""
        ...
