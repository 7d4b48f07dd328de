"""A checkpoint's weights in the shapes that the passes compute with.

Projections are stored input-major and those of one input are joined, so that they are one product; experts are joined,
the shared ones last; the key-value expansion is split into the two factors that absorb it into queries and outputs.

In fp32, three things are multiplied out here instead of in every pass: a norm's scale into the projections that alone
read it, the scale of attention scores into the queries, and the absorbing factors into their neighbours where that is
no more work. In narrower types this would round weights anew, so there the published steps are kept.

Legend: D hidden width, Q query rank, C latent width, G rope width, N nope width, V value width, H heads, I index heads,
J their width, F expert width, E experts, shared ones included.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lineclear.base.errors import CheckpointError
from lineclear.model.checkpoint import Checkpoint
from lineclear.model.config import GlmConfig

MAX_ABSORBED_COST = 1.5
"""Absorbing factors are multiplied into their neighbours where the products grow by at most this factor."""


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """Weights that only an indexer has.

    Shapes: key_norm_weight, key_norm_bias: [J]; head_weights: [D, I] fp32, with the scale of the scores, None if they
    are in the joined input projection.
    """

    key_norm_weight: Tensor
    key_norm_bias: Tensor
    head_weights: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Weights of one layer's attention.

    Shapes: input: [D, Q + C + G (+ J (+ I))]; query_norm: [Q], None if multiplied into `query`; latent_norm: [C];
    query: [Q, H * (N + G) (+ I * J)]; absorb_key: [H, N, C]; absorb_value: [H, C, V]; output: [H * V, D]. The parts in
    parentheses are there with an indexer. Without the absorbing factors query is [Q, H * (C + G) (+ I * J)], with the
    scale of the attention scores, and output [H * C, D].
    """

    input: Tensor
    query_norm: Tensor | None
    latent_norm: Tensor
    query: Tensor
    absorb: "AbsorbWeights | None"
    output: Tensor
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class AbsorbWeights:
    """The key-value expansion by head. Shapes: key: [H, N, C]; value: [H, C, V]."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """Shapes: gate_up: [D, 2F]; down: [F, D]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Weights of a mixture of experts.

    Shapes: negative_router: [D, routed experts] fp32, whose products are the logits' negatives; router_bias: [routed
    experts] fp32; gate_up: [D, E * 2F]; down: [E, F, D].
    """

    negative_router: Tensor
    router_bias: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one decoder layer. Shapes: the norms: [D], None if multiplied into what reads them."""

    input_norm: Tensor | None
    attention: AttentionWeights
    mlp_norm: Tensor | None
    mlp: DenseWeights | MoeWeights


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """Weights of the draft layer.

    Shapes: the norms: [D], None if multiplied into `join`; join: [2D, D], the token's embedding before the hidden
    state.
    """

    embedding_norm: Tensor | None
    hidden_norm: Tensor | None
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
        self._multiplies_out = dtype == torch.float32

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
        embedding_norm = self._take(f"{prefix}.enorm.weight", hidden)
        hidden_norm = self._take(f"{prefix}.hnorm.weight", hidden)
        join = self._take(f"{prefix}.eh_proj.weight", hidden, 2 * hidden)
        return MtpWeights(
            embedding_norm=self._norm_or_none(embedding_norm),
            hidden_norm=self._norm_or_none(hidden_norm),
            join=self._behind(torch.cat([embedding_norm, hidden_norm]), join),
            layer=self._layer(prefix, self._config.num_hidden_layers, is_sparse=True),
            final_norm=self._vector(f"{prefix}.shared_head.norm.weight", hidden),
        )

    def _take_copy(self, name: str, original: Tensor) -> None:
        """Some checkpoints store the draft layer's embedding and head again; the model has one of each."""
        if self._checkpoint.has(name) and not torch.equal(self._take(name, *original.shape), original):
            raise CheckpointError(name, "other values than the model's own", "a copy of the model's own, or absent")

    def _layer(self, prefix: str, layer: int, *, is_sparse: bool) -> LayerWeights:
        hidden = self._config.hidden_size
        input_norm = self._take(f"{prefix}.input_layernorm.weight", hidden)
        mlp_norm = self._take(f"{prefix}.post_attention_layernorm.weight", hidden)
        has_indexer = self._config.has_indexer(layer)
        return LayerWeights(
            input_norm=self._norm_or_none(input_norm),
            attention=self._attention(f"{prefix}.self_attn", input_norm, has_indexer=has_indexer),
            mlp_norm=self._norm_or_none(mlp_norm),
            mlp=self._moe(f"{prefix}.mlp", mlp_norm) if is_sparse else self._dense(f"{prefix}.mlp", mlp_norm),
        )

    def _attention(self, prefix: str, norm: Tensor, *, has_indexer: bool) -> AttentionWeights:
        config = self._config
        hidden, heads = config.hidden_size, config.num_attention_heads
        inputs = [
            self._take(f"{prefix}.q_a_proj.weight", config.q_lora_rank, hidden),
            self._take(f"{prefix}.kv_a_proj_with_mqa.weight", config.latent_width, hidden),
        ]
        query = self._take(f"{prefix}.q_b_proj.weight", heads * config.qk_head_dim, config.q_lora_rank)
        output = self._take(f"{prefix}.o_proj.weight", hidden, heads * config.v_head_dim)
        absorb = self._absorb(prefix)
        if self._multiplies_out and self._absorbs_cheaply():
            query, output = self._absorbed_query(query, absorb.key), self._absorbed_output(output, absorb.value)
            absorb = None
        queries, indexer = [query], None
        if has_indexer:
            inputs.append(self._take(f"{prefix}.indexer.wk.weight", config.index_head_dim, hidden))
            index_width = config.index_n_heads * config.index_head_dim
            queries.append(self._take(f"{prefix}.indexer.wq_b.weight", index_width, config.q_lora_rank))
            head_weights = self._head_weights(f"{prefix}.indexer")
            if self._multiplies_out:
                inputs.append(head_weights)
            indexer = self._indexer(f"{prefix}.indexer", None if self._multiplies_out else head_weights)
        query_norm = self._take(f"{prefix}.q_a_layernorm.weight", config.q_lora_rank)
        return AttentionWeights(
            input=self._behind(norm, torch.cat(inputs)),
            query_norm=self._norm_or_none(query_norm),
            latent_norm=self._vector(f"{prefix}.kv_a_layernorm.weight", config.kv_lora_rank),
            query=self._behind(query_norm, torch.cat(queries)),
            absorb=absorb,
            output=self._input_major(output),
            indexer=indexer,
        )

    def _absorb(self, prefix: str) -> AbsorbWeights:
        config = self._config
        heads, width = config.num_attention_heads, config.qk_nope_head_dim + config.v_head_dim
        expansion = self._take(f"{prefix}.kv_b_proj.weight", heads * width, config.kv_lora_rank)
        keys, values = expansion.unflatten(0, (heads, width)).split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        return AbsorbWeights(self._keep(keys), self._keep(values.transpose(1, 2)))

    def _absorbs_cheaply(self) -> bool:
        config = self._config
        latent, query_rank, hidden = config.kv_lora_rank, config.q_lora_rank, config.hidden_size
        apart = (query_rank + latent) * config.qk_nope_head_dim + (hidden + latent) * config.v_head_dim
        return (query_rank + hidden) * latent <= MAX_ABSORBED_COST * apart

    def _absorbed_query(self, query: Tensor, key: Tensor) -> Tensor:
        """Shapes: query: [H * (N + G), Q]; key: [H, N, C]; returns [H * (C + G), Q], with the scale of the scores."""
        config = self._config
        by_head = query.to(key).unflatten(0, (config.num_attention_heads, -1))
        nope, rope = by_head.split([config.qk_nope_head_dim, config.qk_rope_head_dim], dim=1)
        return torch.cat([key.transpose(1, 2) @ nope, rope], dim=1).flatten(0, 1) * config.qk_head_dim**-0.5

    def _absorbed_output(self, output: Tensor, value: Tensor) -> Tensor:
        """Shapes: output: [D, H * V]; value: [H, C, V]; returns [D, H * C]."""
        by_head = output.to(value).unflatten(1, (self._config.num_attention_heads, -1))
        return torch.einsum("dhv,hcv->dhc", by_head, value).flatten(1)

    def _head_weights(self, prefix: str) -> Tensor:
        config = self._config
        weights = self._take(f"{prefix}.weights_proj.weight", config.index_n_heads, config.hidden_size).float()
        return weights * (config.index_n_heads * config.index_head_dim) ** -0.5

    def _indexer(self, prefix: str, head_weights: Tensor | None) -> IndexerWeights:
        width = self._config.index_head_dim
        return IndexerWeights(
            key_norm_weight=self._vector(f"{prefix}.k_norm.weight", width),
            key_norm_bias=self._vector(f"{prefix}.k_norm.bias", width),
            head_weights=None if head_weights is None else head_weights.T.contiguous().to(self._device),
        )

    def _dense(self, prefix: str, norm: Tensor) -> DenseWeights:
        gate_up, down = self._mlp(prefix, self._config.intermediate_size)
        return DenseWeights(self._behind(norm, gate_up), self._input_major(down))

    def _moe(self, prefix: str, norm: Tensor) -> MoeWeights:
        config = self._config
        experts = [
            self._mlp(f"{prefix}.experts.{expert}", config.moe_intermediate_size)
            for expert in range(config.n_routed_experts)
        ]
        experts += self._shared_experts(f"{prefix}.shared_experts")
        router = self._take(f"{prefix}.gate.weight", config.n_routed_experts, config.hidden_size).float()
        bias = self._take(f"{prefix}.gate.e_score_correction_bias", config.n_routed_experts).float()
        return MoeWeights(
            negative_router=-(router * norm if self._multiplies_out else router).T.contiguous().to(self._device),
            router_bias=bias.to(self._device),
            gate_up=self._behind(norm, torch.cat([gate_up for gate_up, _ in experts])),
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

    def _norm_or_none(self, norm: Tensor) -> Tensor | None:
        return None if self._multiplies_out else self._keep(norm)

    def _behind(self, norm: Tensor, weight: Tensor) -> Tensor:
        """A projection of a norm's output. Shapes: norm: [in]; weight: [out, in]; returns [in, out]."""
        return self._input_major(weight.float() * norm if self._multiplies_out else weight)

    def _input_major(self, weight: Tensor) -> Tensor:
        return self._keep(weight.T)

    def _keep(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype).contiguous()
