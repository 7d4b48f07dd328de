"""GLM-MoE-DSA on a paged KV cache: the forward pass, the draft layer's pass, the logits.

One pass of a model runs at a time. Legend: T tokens of the batch, D hidden width, V vocabulary, R rows.

Source: `transformers` 5.24.0, `modeling_glm_moe_dsa.py`; the draft layer, which it lacks, as in DeepSeek-V3's report
(2.2) with the last norm's output fed on to the next draft step, as SGLang and vLLM do for GLM.
"""

from pathlib import Path

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError
from lineclear.kernels.invariant import invariant_ops
from lineclear.kernels.ops import Ops
from lineclear.kernels.reference import REFERENCE
from lineclear.model.batch import Batch, DraftOutput, KvCache, Selection
from lineclear.model.checkpoint import Checkpoint, OnTensor
from lineclear.model.config import GlmConfig, load_config
from lineclear.model.layer import DecoderLayer
from lineclear.model.prepare import Preparation, PreparedBatch
from lineclear.model.weights import GlmWeights, MtpWeights, load_weights


class GlmModel:
    """A loaded checkpoint.

    Args:
        config: the checkpoint's.
        weights: on one device, in one type (the router and the index head weights in fp32).
        ops: what to compute with.
    """

    def __init__(self, config: GlmConfig, weights: GlmWeights, ops: Ops) -> None:
        self.config = config
        self._ops = ops
        self._weights = weights
        self._layers = [DecoderLayer(config, layer, part, ops) for layer, part in enumerate(weights.layers)]
        self._mtp = None if weights.mtp is None else _DraftLayer(config, weights.mtp, ops)
        self._preparation = Preparation(
            _inverse_frequencies(config).to(weights.embedding.device), config.index_topk, ops.min_rows, ops.key_tile
        )

    @property
    def num_cache_layers(self) -> int:
        """Layers with KV; the draft layer's index is the last."""
        return self.config.num_cache_layers

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KvCache) -> Tensor:
        """Run the layers over a batch and write its KV.

        Shapes: returns [T, D], after the final norm.
        """
        prepared = self._preparation.prepare(batch, cache.block_size)
        hidden = self._embed(batch.token_ids, prepared)
        selection: Selection | None = None
        for layer, block in enumerate(self._layers):
            shared = None if self.config.has_indexer(layer) else selection
            hidden, selection = block.forward(hidden, prepared, cache, shared)
        hidden = self._ops.rms_norm(hidden, self._weights.final_norm, self.config.rms_norm_eps)
        return hidden[: batch.num_tokens]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary. Shapes: hidden: [R, D]; returns [R, V] in fp32."""
        return self._ops.matmul(hidden, self._weights.head).float()

    @torch.inference_mode()
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
        With `shared_selection`, tokens whose context exceeds `index_topk` attend to it instead of selecting anew.

        Shapes: hidden: [T, D]; next_token_ids: [T] int64; returned hidden: [T, D], whose `logits` propose the token
        after the next and which is the `hidden` of the following draft step.
        """
        if self._mtp is None:
            raise InvariantError("the checkpoint has no draft layer")
        prepared = self._preparation.prepare(batch, cache.block_size)
        shared = None if shared_selection is None else _share(shared_selection, prepared)
        embedded = self._embed(next_token_ids, prepared)
        output, selection = self._mtp.forward(embedded, prepared.pad(hidden), prepared, cache, shared)
        return DraftOutput(output[: batch.num_tokens], selection)

    def _embed(self, token_ids: Tensor, prepared: PreparedBatch) -> Tensor:
        return self._weights.embedding.index_select(0, prepared.pad(token_ids))


class _DraftLayer:
    """The multi-token-prediction layer: joins a token with the hidden state before it, and runs one decoder layer."""

    def __init__(self, config: GlmConfig, weights: MtpWeights, ops: Ops) -> None:
        self._eps = config.rms_norm_eps
        self._ops = ops
        self._weights = weights
        self._block = DecoderLayer(config, config.num_hidden_layers, weights.layer, ops)

    def forward(
        self, embedded: Tensor, hidden: Tensor, prepared: PreparedBatch, cache: KvCache, shared: Selection | None
    ) -> tuple[Tensor, Selection]:
        """Shapes: embedded, hidden: [R, D]; returns [R, D], after the last norm."""
        embedded = self._ops.rms_norm(embedded, self._weights.embedding_norm, self._eps)
        hidden = self._ops.rms_norm(hidden, self._weights.hidden_norm, self._eps)
        joined = self._ops.matmul(torch.cat([embedded, hidden], dim=-1), self._weights.join)
        output, selection = self._block.forward(joined, prepared, cache, shared)
        return self._ops.rms_norm(output, self._weights.final_norm, self._eps), selection


def _share(shared: Selection, prepared: PreparedBatch) -> Selection:
    """An earlier step's selection, except for tokens that attend to their whole context anyway."""
    whole = prepared.whole_context
    if whole is None:
        return shared
    is_whole = (prepared.positions < whole.slots.shape[1])[:, None, None]
    beyond = torch.where(is_whole, whole.places_beyond(), shared.places_beyond())
    return Selection(torch.where(is_whole.squeeze(1), whole.slots, shared.slots), beyond)


def _inverse_frequencies(config: GlmConfig) -> Tensor:
    width = config.qk_rope_head_dim
    return 1.0 / config.rope_theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)


def load_model(
    directory: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    batch_invariant: bool = True,
    on_tensor: OnTensor | None = None,
) -> GlmModel:
    """Load a checkpoint; `batch_invariant` holds on the CPU only, `on_tensor` hears of every tensor that is read.

    Raises: CheckpointError naming the field or tensor that is missing, unknown, or cannot be computed.
    """
    config = load_config(directory)
    checkpoint = Checkpoint(directory, config.fp8_block_shape, on_tensor)
    weights = load_weights(checkpoint, config, device=device, dtype=dtype)
    ops = invariant_ops() if batch_invariant and device.type == "cpu" else REFERENCE
    return GlmModel(config, weights, ops)
