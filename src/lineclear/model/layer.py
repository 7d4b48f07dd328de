"""One decoder layer: attention and feed-forward, each behind a norm and beside a residual."""

from torch import Tensor

from lineclear.kernels.ops import Ops
from lineclear.model.attention import Attention
from lineclear.model.batch import KvCache, Selection
from lineclear.model.config import GlmConfig
from lineclear.model.moe import DenseMlp, MoeMlp
from lineclear.model.prepare import PreparedBatch
from lineclear.model.weights import DenseWeights, LayerWeights, MoeWeights


class DecoderLayer:
    """Layer `layer` of the model, or the draft layer's block."""

    def __init__(self, config: GlmConfig, layer: int, weights: LayerWeights, ops: Ops) -> None:
        self._eps = config.rms_norm_eps
        self._ops = ops
        self._input_norm = weights.input_norm
        self._mlp_norm = weights.mlp_norm
        self._attention = Attention(config, layer, weights.attention, ops)
        self._mlp = _mlp(config, weights.mlp, ops)

    def forward(
        self, hidden: Tensor, prepared: PreparedBatch, cache: KvCache, shared: Selection | None
    ) -> tuple[Tensor, Selection]:
        """Shapes: hidden: [R, D]; returns [R, D] and the selection that the attention used. Mutates: hidden."""
        x = self._ops.rms_norm(hidden, self._input_norm, self._eps)
        attended, selection = self._attention.forward(x, prepared, cache, shared)
        prepared.tokens(hidden).add_(attended)
        x = self._ops.rms_norm(hidden, self._mlp_norm, self._eps)
        return hidden.add_(self._mlp.forward(x)), selection


def _mlp(config: GlmConfig, weights: DenseWeights | MoeWeights, ops: Ops) -> DenseMlp | MoeMlp:
    if isinstance(weights, DenseWeights):
        return DenseMlp(weights, ops)
    return MoeMlp(config, weights, ops)
