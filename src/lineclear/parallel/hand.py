"""What each rank computes of a plan, and in which order everybody's rows come together.

    plan's rows      0 1 2 3 4 5 6 7 8 9        rank 0: 0 1 2 8 9, rank 1: 3 4 5 6 7
    gathered rows    0 1 2 8 9 3 4 5 6 7        rank 0's first

Legend: T tokens of the plan, O of them this rank's own, R sampled rows.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lineclear.engine.batch import PreparedChunk, Run, lay_out, sampled_rows
from lineclear.kv.block_table import BlockTable
from lineclear.model.batch import Batch
from lineclear.parallel.planning.deal import Stripe


@dataclass(frozen=True, slots=True)
class Hand:
    """One rank's part of a plan. A rank that was dealt nothing computes a row of another's, and gives nobody anything.

    Shapes: batch: of max(O, 1) tokens; plan_rows: [max(O, 1)] int64, the plan's row of each; sampled: int64, which
    of the batch's rows are sampled; slots: [T] int64, in gathered order; sampled_order: [R] int64, of each sampled row
    of the plan its place among those that are gathered.
    """

    rank: int
    batch: Batch
    plan_rows: Tensor
    counts: tuple[int, ...]
    """Rows that each rank gives; they are the first of its batch."""
    sampled: Tensor
    sampled_counts: tuple[int, ...]
    slots: Tensor
    sampled_order: Tensor
    chunk_rows: tuple[tuple[int, int, int], ...]
    """Of each own stripe its chunk's place in the plan, and its rows in the batch, from and to."""

    @property
    def num_own(self) -> int:
        """O."""
        return self.counts[self.rank]


def take_hand(
    chunks: Items[PreparedChunk],
    tables: Items[BlockTable],
    hands: Items[Items[Stripe]],
    rank: int,
    *,
    block_size: int,
    device: torch.device,
) -> Hand:
    """Lay out what a rank was dealt; `tables` are the chunks' blocks in the memory that is read."""
    own = hands[rank] or (Stripe(0, chunks[0].chunk.start, chunks[0].chunk.start + 1),)
    token_ids = [id_ for each in own for id_ in chunks[each.chunk_idx].sequence.token_ids(each.start, each.end)]
    runs = [Run(each.start, each.end, tables[each.chunk_idx]) for each in own]
    counts = tuple(sum(each.num_tokens for each in hand) for hand in hands)
    is_sampled = np.zeros(sum(counts), dtype=np.bool_)
    is_sampled[sampled_rows(chunks)] = True
    own_rows = _plan_rows(chunks, own)
    sampled_by_rank = [_plan_rows(chunks, hand) for hand in hands]
    sampled_by_rank = [rows[is_sampled[rows]] for rows in sampled_by_rank]

    def tensor(values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(device)

    return Hand(
        rank=rank,
        batch=lay_out(token_ids, runs, block_size=block_size, device=device),
        plan_rows=tensor(own_rows),
        counts=counts,
        sampled=tensor(np.flatnonzero(is_sampled[own_rows[: counts[rank]]])),
        sampled_counts=tuple(len(rows) for rows in sampled_by_rank),
        slots=gathered_slots(chunks, tables, hands, block_size=block_size, device=device),
        sampled_order=tensor(np.argsort(np.concatenate(sampled_by_rank), kind="stable")),
        chunk_rows=tuple(_chunk_rows(hands[rank])),
    )


def gathered_slots(
    chunks: Items[PreparedChunk],
    tables: Items[BlockTable],
    hands: Items[Items[Stripe]],
    *,
    block_size: int,
    device: torch.device,
) -> Tensor:
    """Where all ranks' rows go, in gathered order, in the memory that the tables are of. Shapes: returns [T] int64."""
    slots = _slots(chunks, tables, block_size)
    return torch.from_numpy(slots[np.concatenate([_plan_rows(chunks, hand) for hand in hands])]).to(device)


def _plan_rows(chunks: Items[PreparedChunk], stripes: Items[Stripe]) -> NDArray[np.int64]:
    spans = [np.empty(0, dtype=np.int64)]
    for each in stripes:
        prepared = chunks[each.chunk_idx]
        first = prepared.first_row + each.start - prepared.chunk.start
        spans.append(np.arange(first, first + each.num_tokens, dtype=np.int64))
    return np.concatenate(spans)


def _slots(chunks: Items[PreparedChunk], tables: Items[BlockTable], block_size: int) -> NDArray[np.int64]:
    """Of each of the plan's rows."""
    slots: list[NDArray[np.int64]] = []
    for each, block_table in zip(chunks, tables, strict=True):
        table = np.frombuffer(block_table.packed(), dtype=np.int64)
        positions = np.arange(each.chunk.start, each.chunk.end)
        slots.append(table[positions // block_size] * block_size + positions % block_size)
    return np.concatenate(slots)


def _chunk_rows(stripes: Items[Stripe]) -> list[tuple[int, int, int]]:
    rows: list[tuple[int, int, int]] = []
    row = 0
    for each in stripes:
        rows.append((each.chunk_idx, row, row + each.num_tokens))
        row += each.num_tokens
    return rows
