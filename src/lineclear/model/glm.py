"""GLM-MoE-DSA on a paged KV cache.

Legend: T tokens of the batch, D hidden_size, V vocab_size, R rows.
"""

from pathlib import Path

import torch
from torch import Tensor

from lineclear.model.batch import Batch, DraftOutput, KvCache, Selection
from lineclear.model.config import GlmConfig


class GlmModel:
    """A loaded checkpoint: the forward pass, the draft layer's pass and the logits."""

    def __init__(self, config: GlmConfig) -> None:
        self.config = config

    @property
    def num_cache_layers(self) -> int:
        """Layers with KV; the draft layer's index is the last."""
        return self.config.num_cache_layers

    def forward(self, batch: Batch, cache: KvCache) -> Tensor:
        """Run the layers over a batch and write its KV.

        Shapes: returns [T, D], after the final norm.
        """
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary. Shapes: hidden: [R, D]; returns [R, V] in fp32."""
        raise NotImplementedError

    def draft(
        self,
        batch: Batch,
        hidden: Tensor,
        next_token_ids: Tensor,
        cache: KvCache,
        shared_selection: Selection | None = None,
    ) -> DraftOutput:
        """Run the draft layer; its KV goes to `batch.slot_mapping` in the last cache layer.

        `batch.token_ids` are not used: the layer joins each position's hidden state with the token that follows it.

        Shapes: hidden: [T, D]; next_token_ids: [T] int64; returned hidden: [T, D], whose `logits` propose the token after
        the next and which is the `hidden` of the following draft step.
        """
        raise NotImplementedError


def load_model(directory: Path, *, device: torch.device, dtype: torch.dtype, batch_invariant: bool = True) -> GlmModel:
    """Load a checkpoint.

    Raises: CheckpointError naming the field or tensor that is missing, unknown, or cannot be computed.
    """
    raise NotImplementedError
