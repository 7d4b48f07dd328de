"""A checkpoint's weights in the shapes that the passes compute with.

Projections are stored input-major and those of one input are joined, so that they are one product; experts are joined, the
shared ones last; the key-value expansion is split into the two factors that absorb it into queries and outputs.

Legend: D hidden width, Q query rank, C latent width, G rope width, N nope width, V value width, H heads, I index heads, J
their width, F expert width, E experts, shared ones included.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lineclear.base.errors import CheckpointError
from lineclear.model.checkpoint import Checkpoint
from lineclear.model.config import GlmConfig


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """Shapes: key_norm_weight, key_norm_bias: [J]; head_weights: [D, I] fp32, scores' scale included."""

    key_norm_weight: Tensor
    key_norm_bias: Tensor
    head_weights: Tensor


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Weights of one layer's attention.

    Shapes: input: [D, Q + C + G (+ J)]; query_norm: [Q]; latent_norm: [C]; query: [Q, H * (N + G) (+ I * J)]; absorb_key:
    [H, N, C]; absorb_value: [H, C, V]; output: [H * V, D]. The parts in parentheses are there with an indexer.
    """

    input: Tensor
    query_norm: Tensor
    latent_norm: Tensor
    query: Tensor
    absorb_key: Tensor
    absorb_value: Tensor
    output: Tensor
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """Shapes: gate_up: [D, 2F]; down: [F, D]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Shapes: router: [D, routed experts] fp32; router_bias: [routed experts] fp32; gate_up: [D, E * 2F]; down: [E, F, D]."""

    router: Tensor
    router_bias: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one decoder layer. Shapes: the norms: [D]."""

    input_norm: Tensor
    attention: AttentionWeights
    mlp_norm: Tensor
    mlp: DenseWeights | MoeWeights


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """Weights of the draft layer. Shapes: the norms: [D]; join: [2D, D], the token's embedding before the hidden state."""

    embedding_norm: Tensor
    hidden_norm: Tensor
    join: Tensor
    layer: LayerWeights
    final_norm: Tensor


@dataclass(frozen=True, slots=True)
class GlmWeights:
    """Weights of a model. Shapes: embedding: [V, D]; final_norm: [D]; head: [D, V]."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor
    mtp: MtpWeights | None


def load_weights(checkpoint: Checkpoint, config: GlmConfig, *, device: torch.device, dtype: torch.dtype) -> GlmWeights:
    """Take every tensor of a checkpoint.

    Raises: CheckpointError naming a tensor that is missing, misshapen or unknown.
    """
    weights = _Loader(checkpoint, config, device, dtype).model()
    checkpoint.refuse_left()
    return weights


class _Loader:
    def __init__(self, checkpoint: Checkpoint, config: GlmConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._device = device
        self._dtype = dtype

    def model(self) -> GlmWeights:
        config = self._config
        embedding = self._take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        head = self._take("lm_head.weight", config.vocab_size, config.hidden_size)
        layers = tuple(
            self._layer(f"model.layers.{layer}", layer, is_sparse=config.mlp_layer_types[layer] == "sparse")
            for layer in range(config.num_hidden_layers)
        )
        mtp = self._mtp(f"model.layers.{config.num_hidden_layers}", embedding, head) if config.has_mtp else None
        final_norm = self._vector("model.norm.weight", config.hidden_size)
        return GlmWeights(self._keep(embedding), layers, final_norm, self._input_major(head), mtp)

    def _mtp(self, prefix: str, embedding: Tensor, head: Tensor) -> MtpWeights:
        hidden = self._config.hidden_size
        self._take_copy(f"{prefix}.embed_tokens.weight", embedding)
        self._take_copy(f"{prefix}.shared_head.head.weight", head)
        return MtpWeights(
            embedding_norm=self._vector(f"{prefix}.enorm.weight", hidden),
            hidden_norm=self._vector(f"{prefix}.hnorm.weight", hidden),
            join=self._input_major(self._take(f"{prefix}.eh_proj.weight", hidden, 2 * hidden)),
            layer=self._layer(prefix, self._config.num_hidden_layers, is_sparse=True),
            final_norm=self._vector(f"{prefix}.shared_head.norm.weight", hidden),
        )

    def _take_copy(self, name: str, original: Tensor) -> None:
        """Some checkpoints store the draft layer's embedding and head again; the model has one of each."""
        if self._checkpoint.has(name) and not torch.equal(self._take(name, *original.shape), original):
            raise CheckpointError(name, "other values than the model's own", "a copy of the model's own, or absent")

    def _layer(self, prefix: str, layer: int, *, is_sparse: bool) -> LayerWeights:
        hidden = self._config.hidden_size
        return LayerWeights(
            input_norm=self._vector(f"{prefix}.input_layernorm.weight", hidden),
            attention=self._attention(f"{prefix}.self_attn", has_indexer=self._config.has_indexer(layer)),
            mlp_norm=self._vector(f"{prefix}.post_attention_layernorm.weight", hidden),
            mlp=self._moe(f"{prefix}.mlp") if is_sparse else self._dense(f"{prefix}.mlp"),
        )

    def _attention(self, prefix: str, *, has_indexer: bool) -> AttentionWeights:
        config = self._config
        hidden, heads, latent = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
        inputs = [
            self._take(f"{prefix}.q_a_proj.weight", config.q_lora_rank, hidden),
            self._take(f"{prefix}.kv_a_proj_with_mqa.weight", config.latent_width, hidden),
        ]
        queries = [self._take(f"{prefix}.q_b_proj.weight", heads * config.qk_head_dim, config.q_lora_rank)]
        if has_indexer:
            inputs.append(self._take(f"{prefix}.indexer.wk.weight", config.index_head_dim, hidden))
            index_width = config.index_n_heads * config.index_head_dim
            queries.append(self._take(f"{prefix}.indexer.wq_b.weight", index_width, config.q_lora_rank))
        expansion_width = config.qk_nope_head_dim + config.v_head_dim
        expansion = self._take(f"{prefix}.kv_b_proj.weight", heads * expansion_width, latent)
        keys, values = expansion.view(heads, expansion_width, latent).split(
            [config.qk_nope_head_dim, config.v_head_dim], dim=1
        )
        return AttentionWeights(
            input=self._input_major(torch.cat(inputs)),
            query_norm=self._vector(f"{prefix}.q_a_layernorm.weight", config.q_lora_rank),
            latent_norm=self._vector(f"{prefix}.kv_a_layernorm.weight", latent),
            query=self._input_major(torch.cat(queries)),
            absorb_key=self._keep(keys),
            absorb_value=self._keep(values.transpose(1, 2)),
            output=self._input_major(self._take(f"{prefix}.o_proj.weight", hidden, heads * config.v_head_dim)),
            indexer=self._indexer(f"{prefix}.indexer") if has_indexer else None,
        )

    def _indexer(self, prefix: str) -> IndexerWeights:
        config = self._config
        head_weights = self._take(f"{prefix}.weights_proj.weight", config.index_n_heads, config.hidden_size).float()
        scale = (config.index_n_heads * config.index_head_dim) ** -0.5
        return IndexerWeights(
            key_norm_weight=self._vector(f"{prefix}.k_norm.weight", config.index_head_dim),
            key_norm_bias=self._vector(f"{prefix}.k_norm.bias", config.index_head_dim),
            head_weights=(head_weights.T * scale).contiguous().to(self._device),
        )

    def _dense(self, prefix: str) -> DenseWeights:
        gate_up, down = self._mlp(prefix, self._config.intermediate_size)
        return DenseWeights(self._input_major(gate_up), self._input_major(down))

    def _moe(self, prefix: str) -> MoeWeights:
        config = self._config
        experts = [
            self._mlp(f"{prefix}.experts.{expert}", config.moe_intermediate_size)
            for expert in range(config.n_routed_experts)
        ]
        experts += self._shared_experts(f"{prefix}.shared_experts")
        router = self._take(f"{prefix}.gate.weight", config.n_routed_experts, config.hidden_size).float()
        bias = self._take(f"{prefix}.gate.e_score_correction_bias", config.n_routed_experts).float()
        return MoeWeights(
            router=router.T.contiguous().to(self._device),
            router_bias=bias.to(self._device),
            gate_up=self._input_major(torch.cat([gate_up for gate_up, _ in experts])),
            down=self._keep(torch.stack([down.T for _, down in experts])),
        )

    def _shared_experts(self, prefix: str) -> list[tuple[Tensor, Tensor]]:
        """One wide MLP on disk is the sum of experts of the common width."""
        count, width = self._config.n_shared_experts, self._config.moe_intermediate_size
        gate_up, down = self._mlp(prefix, count * width)
        gate, up = gate_up.chunk(2)
        return [
            (torch.cat([gate_part, up_part]), down_part)
            for gate_part, up_part, down_part in zip(
                gate.split(width), up.split(width), down.split(width, dim=1), strict=True
            )
        ]

    def _mlp(self, prefix: str, width: int) -> tuple[Tensor, Tensor]:
        """Gate above up, and down, as on disk."""
        hidden = self._config.hidden_size
        gate = self._take(f"{prefix}.gate_proj.weight", width, hidden)
        up = self._take(f"{prefix}.up_proj.weight", width, hidden)
        return torch.cat([gate, up]), self._take(f"{prefix}.down_proj.weight", hidden, width)

    def _take(self, name: str, *shape: int) -> Tensor:
        return self._checkpoint.take(name, *shape)

    def _vector(self, name: str, width: int) -> Tensor:
        return self._keep(self._take(name, width))

    def _input_major(self, weight: Tensor) -> Tensor:
        return self._keep(weight.T)

    def _keep(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype).contiguous()
