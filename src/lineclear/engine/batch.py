"""From a plan to the tensors of one forward pass.

Legend: T tokens of the batch, R sampled rows, S sequences of one draft step.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lineclear.base.ids import SequenceId
from lineclear.kv.block_table import BlockTable
from lineclear.model.batch import Batch, Segment
from lineclear.schedule.plan import Chunk, Plan
from lineclear.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    """One chunk of the plan, placed in the batch: rows `[first_row, end_row)`."""

    chunk: Chunk
    sequence: Sequence
    first_row: int

    @property
    def end_row(self) -> int:
        """The row after the last one, drafts included."""
        return self.first_row + self.chunk.end - self.chunk.start

    @property
    def first_sampled_row(self) -> int:
        """Row of the last real token; its logits choose the next token. Drafts follow it."""
        return self.end_row - self.chunk.num_drafts - 1


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A plan as tensors.

    Shapes: sampled_rows: [R] int64, for each sampling chunk the row of its last real token and those of its drafts.
    """

    batch: Batch
    chunks: tuple[PreparedChunk, ...]
    sampled_rows: Tensor

    @property
    def sampling(self) -> tuple[PreparedChunk, ...]:
        """The chunks that want tokens, in the order of `sampled_rows`."""
        return tuple(prepared for prepared in self.chunks if prepared.chunk.samples)


def prepare_batch(
    plan: Plan, sequences: Mapping[SequenceId, Sequence], *, block_size: int, device: torch.device
) -> PreparedBatch:
    """Lay a plan's chunks out one after the other."""
    chunks = place_chunks(plan, sequences)
    token_ids: list[int] = []
    runs: list[Run] = []
    for each in chunks:
        start, end = each.chunk.start, each.chunk.end
        token_ids += each.sequence.token_ids(start, end)
        runs.append(Run(start, end, each.sequence.block_table))
    batch = lay_out(token_ids, runs, block_size=block_size, device=device)
    return PreparedBatch(batch, chunks, torch.tensor(sampled_rows(chunks), dtype=torch.int64, device=device))


def place_chunks(plan: Plan, sequences: Mapping[SequenceId, Sequence]) -> tuple[PreparedChunk, ...]:
    """Give a plan's chunks their rows, one after the other."""
    chunks: list[PreparedChunk] = []
    for chunk in plan.chunks:
        first_row = chunks[-1].end_row if chunks else 0
        chunks.append(PreparedChunk(chunk, sequences[chunk.sequence_id], first_row))
    return tuple(chunks)


def sampled_rows(chunks: Items[PreparedChunk]) -> list[int]:
    """For each sampling chunk the row of its last real token and those of its drafts."""
    return [row for each in chunks if each.chunk.samples for row in range(each.first_sampled_row, each.end_row)]


def prepare_draft_step(
    positions: Items[int], block_tables: Items[BlockTable], *, block_size: int, device: torch.device
) -> Batch:
    """One token of each sequence, at the given positions; the draft layer does not use the token ids."""
    runs = [Run(position, position + 1, table) for position, table in zip(positions, block_tables, strict=True)]
    return lay_out([0] * len(runs), runs, block_size=block_size, device=device)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive positions `[start, end)` of one sequence."""

    start: int
    end: int
    block_table: BlockTable


def lay_out(token_ids: Items[int], runs: Items[Run], *, block_size: int, device: torch.device) -> Batch:
    """The tensors of runs of tokens, one after the other; a sequence may have several runs."""
    positions: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    segments: list[Segment] = []
    row = 0
    for run in runs:
        num_blocks = -(-run.end // block_size)
        table = np.frombuffer(run.block_table.packed(num_blocks), dtype=np.int64)
        span = np.arange(run.start, run.end)
        positions.append(span)
        slots.append(table[span // block_size] * block_size + span % block_size)
        end_row = row + run.end - run.start
        segments.append(Segment(row, end_row, run.end, torch.from_numpy(table).to(device)))
        row = end_row
    return Batch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64, device=device),
        positions=torch.from_numpy(np.concatenate(positions)).to(device),
        slot_mapping=torch.from_numpy(np.concatenate(slots)).to(device),
        segments=tuple(segments),
    )
