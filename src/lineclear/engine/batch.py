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
    token_ids: list[int] = []
    runs: list[_Run] = []
    chunks: list[PreparedChunk] = []
    sampled_rows: list[int] = []
    for chunk in plan.chunks:
        sequence = sequences[chunk.sequence_id]
        prepared = PreparedChunk(chunk, sequence, first_row=len(token_ids))
        token_ids += sequence.token_ids(chunk.start, chunk.end)
        runs.append(_Run(chunk.start, chunk.end, sequence.block_table))
        chunks.append(prepared)
        if chunk.samples:
            sampled_rows += range(prepared.first_sampled_row, len(token_ids))
    batch = _lay_out(token_ids, runs, block_size=block_size, device=device)
    return PreparedBatch(batch, tuple(chunks), torch.tensor(sampled_rows, dtype=torch.int64, device=device))


def prepare_draft_step(
    positions: Items[int], block_tables: Items[BlockTable], *, block_size: int, device: torch.device
) -> Batch:
    """One token of each sequence, at the given positions; the draft layer does not use the token ids."""
    runs = [_Run(position, position + 1, table) for position, table in zip(positions, block_tables, strict=True)]
    return _lay_out([0] * len(runs), runs, block_size=block_size, device=device)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive positions `[start, end)` of one sequence."""

    start: int
    end: int
    block_table: BlockTable


def _lay_out(token_ids: list[int], runs: Items[_Run], *, block_size: int, device: torch.device) -> Batch:
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
