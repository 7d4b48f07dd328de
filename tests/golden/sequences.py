"""Runs a model over token lists on a store of its own, with scattered blocks, in any chunking."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.store import KvStore, KvView
from lineclear.model.batch import Batch, Segment
from lineclear.model.glm import GlmModel

BLOCK_SIZE = 16


class Sequences:
    """Several sequences in one store, each with blocks picked at random."""

    def __init__(
        self, model: GlmModel, capacities: Sequence[int], dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> None:
        counts = [-(-capacity // BLOCK_SIZE) for capacity in capacities]
        order = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(seed))
        self.model = model
        self.store = KvStore(model.config, len(order), BLOCK_SIZE, device=torch.device("cpu"), dtype=dtype)
        self.cache: KvView = self.store.view(AlwaysReady())
        self.block_tables = list(order[: sum(counts)].split(counts))

    def batch(self, chunks: Sequence[tuple[int, int, Tensor]]) -> Batch:
        """Chunks are `(sequence, first position, token ids)`."""
        segments: list[Segment] = []
        positions: list[Tensor] = []
        slots: list[Tensor] = []
        start = 0
        for sequence, first, token_ids in chunks:
            end, context_len = start + len(token_ids), first + len(token_ids)
            table = self.block_tables[sequence]
            segments.append(Segment(start, end, context_len, table[: -(-context_len // BLOCK_SIZE)]))
            positions.append(torch.arange(first, context_len))
            slots.append(table[positions[-1] // BLOCK_SIZE] * BLOCK_SIZE + positions[-1] % BLOCK_SIZE)
            start = end
        token_ids = torch.cat([chunk[2] for chunk in chunks])
        return Batch(token_ids, torch.cat(positions), torch.cat(slots), tuple(segments))

    def forward(self, chunks: Sequence[tuple[int, int, Tensor]]) -> list[Tensor]:
        """Hidden states of each chunk."""
        hidden = self.model.forward(self.batch(chunks), self.cache)
        return list(hidden.split([len(chunk[2]) for chunk in chunks]))

    def prefill(self, sequence: int, token_ids: Tensor, chunk: int | None = None) -> Tensor:
        """Hidden states of one sequence, computed alone, from its start."""
        chunk = chunk or len(token_ids)
        parts = [
            self.forward([(sequence, start, token_ids[start : start + chunk])])[0]
            for start in range(0, len(token_ids), chunk)
        ]
        return torch.cat(parts)

    def slots(self, sequence: int, num_tokens: int) -> Tensor:
        """Slots of a sequence's first tokens."""
        positions = torch.arange(num_tokens)
        return self.block_tables[sequence][positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
