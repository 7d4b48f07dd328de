"""Our model with what the comparison needs recorded: each layer's output and selection, and the index scores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lineclear.kernels.invariant import invariant_ops
from lineclear.kernels.ops import Ops
from lineclear.model.batch import KvCache, Selection
from lineclear.model.checkpoint import Checkpoint
from lineclear.model.config import load_config
from lineclear.model.glm import GlmModel
from lineclear.model.layer import DecoderLayer
from lineclear.model.prepare import PreparedBatch
from lineclear.model.weights import load_weights
from tests.golden.sequences import Sequences


@dataclass
class Layer:
    """A decoder layer that keeps what it returned."""

    inner: DecoderLayer
    hidden: list[Tensor]
    selections: list[Selection]

    def forward(
        self, hidden: Tensor, prepared: PreparedBatch, cache: KvCache, shared: Selection | None
    ) -> tuple[Tensor, Selection]:
        hidden, selection = self.inner.forward(hidden, prepared, cache, shared)
        self.hidden.append(prepared.tokens(hidden).clone())
        self.selections.append(selection)
        return hidden, selection


class Recorded:
    """A model on the CPU's table (or another), and one sequence in a store."""

    def __init__(self, directory: Path, capacity: int, make_ops: Callable[[], Ops] = invariant_ops) -> None:
        config = load_config(directory)
        weights = load_weights(
            Checkpoint(directory, config.fp8_block_shape), config, device=torch.device("cpu"), dtype=torch.float32
        )
        self.scores: list[Tensor] = []
        self.ops = make_ops()
        self.model = GlmModel(config, weights, replace(self.ops, index_scores=self._index_scores))
        self.layers = [Layer(layer, [], []) for layer in self.model._layers]
        self.model._layers = self.layers  # pyright: ignore[reportAttributeAccessIssue]
        self.sequences = Sequences(self.model, [capacity])

    def selected(self, layer: int, num_tokens: int) -> list[set[int]]:
        """Positions that each token attended to in this layer, over all chunks so far."""
        position_of = {slot: position for position, slot in enumerate(self.sequences.slots(0, num_tokens).tolist())}
        rows: list[set[int]] = []
        for selection in self.layers[layer].selections:
            for slots, beyond in zip(selection.slots.tolist(), selection.places_beyond()[:, 0].tolist(), strict=True):
                rows.append({position_of[slot] for slot, is_out in zip(slots, beyond, strict=True) if not is_out})
        return rows

    def _index_scores(self, queries: Tensor, head_weights: Tensor, keys: Tensor) -> Tensor:
        scores = self.ops.index_scores(queries, head_weights, keys)
        self.scores += list(scores.flatten(0, 1).clone())
        return scores
