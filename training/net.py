"""A differentiable glm_moe_dsa network with its MTP layer, for training on whole rows.

Parameter names are exactly those of a Hugging Face checkpoint on disk (experts unstacked, the MTP layer at
`model.layers.{num_hidden_layers}`), so a state dict is the checkpoint. Attention is the expanded form: a row is short,
and autograd wants plain matrices. A selection is an additive mask.

Shapes: B rows, T tokens of a row, R sampled query rows, H attention heads, I index heads, D hidden size,
Q = nope + rope, P = rotary pairs, V = v_head_dim, N = any number of tokens.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own habit)
from torch import Tensor, nn


@dataclass(frozen=True)
class NetConfig:
    """The fields of the checkpoint's config.json that shape the network."""

    vocab_size: int = 2048
    hidden_size: int = 192
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    q_lora_rank: int = 128
    kv_lora_rank: int = 192
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 16
    v_head_dim: int = 64
    intermediate_size: int = 384
    moe_intermediate_size: int = 96
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    n_shared_experts: int = 1
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.5
    index_n_heads: int = 16
    index_head_dim: int = 64
    index_topk: int = 256
    indexer_types: tuple[str, ...] = ("full", "full", "shared", "full")
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 131072

    @property
    def qk_head_dim(self) -> int:
        """Width of one head's query, its rotated part included."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def is_full(self, layer_idx: int) -> bool:
        """Whether the layer has an indexer of its own; the MTP layer always has one."""
        return layer_idx >= self.num_hidden_layers or self.indexer_types[layer_idx] == "full"


@dataclass
class Trace:
    """What a forward pass leaves behind for the losses and the router's balance.

    `index_losses`: one scalar a full layer. `expert_loads`: routed-token counts [experts], by MoE layer index.
    """

    index_rows: Tensor | None = None
    index_losses: list[Tensor] = field(default_factory=list)
    index_recalls: list[Tensor] = field(default_factory=list)
    expert_loads: dict[int, Tensor] = field(default_factory=dict)


class RMSNorm(nn.Module):
    """Root-mean-square norm with a gain; any shape [..., D]."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def linear(num_in: int, num_out: int) -> nn.Linear:
    """A projection without bias."""
    return nn.Linear(num_in, num_out, bias=False)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate interleaved pairs of x [..., P*2] by angles [..., P] (broadcast)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


class Indexer(nn.Module):
    """Scores every earlier token for a query with many cheap ReLU heads."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.config = config
        self.wq_b = linear(config.q_lora_rank, config.index_n_heads * config.index_head_dim)
        self.wk = linear(config.hidden_size, config.index_head_dim)
        self.k_norm = nn.LayerNorm(config.index_head_dim, eps=1e-6)
        self.weights_proj = linear(config.hidden_size, config.index_n_heads)

    def keys(self, x: Tensor, angles: Tensor) -> Tensor:
        """[B,T,D] -> index keys [B,T,index_head_dim]."""
        rope = self.config.qk_rope_head_dim
        k = self.k_norm(self.wk(x))
        return torch.cat((rotate(k[..., :rope], angles), k[..., rope:]), -1)

    def queries(self, x: Tensor, q_r: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """States [B,R,D] and q_r [B,R,q_lora] -> queries [B,R,I,index_head_dim] and head weights [B,R,I]."""
        rope, num_heads = self.config.qk_rope_head_dim, self.config.index_n_heads
        q = self.wq_b(q_r).unflatten(-1, (num_heads, -1))
        q = torch.cat((rotate(q[..., :rope], angles[..., None, :]), q[..., rope:]), -1)
        return q * self.config.index_head_dim**-0.5, self.weights_proj(x) * num_heads**-0.5

    def scores(self, q: Tensor, w: Tensor, keys: Tensor) -> Tensor:
        """Queries [B,R,I,d], weights [B,R,I], keys [B,T,d] -> [B,R,T]; differentiable."""
        dots = torch.einsum("brid,btd->brit", q, keys).relu()
        return torch.einsum("brit,bri->brt", dots, w)

    @torch.no_grad()
    def scores_by_head(self, q: Tensor, w: Tensor, keys: Tensor) -> Tensor:
        """As `scores`, one head at a time, without a [B,R,I,T] tensor."""
        keys_t = keys.transpose(1, 2)
        total = torch.zeros(q.shape[0], q.shape[1], keys.shape[1])
        for head in range(q.shape[2]):
            total += (q[:, :, head] @ keys_t).relu_().mul_(w[:, :, head, None])
        return total


class Attention(nn.Module):
    """Multi-head latent attention with an optional indexer."""

    def __init__(self, config: NetConfig, layer_idx: int) -> None:
        super().__init__()
        heads, value = config.num_attention_heads, config.v_head_dim
        self.config = config
        self.q_a_proj = linear(config.hidden_size, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.q_b_proj = linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = linear(config.hidden_size, config.kv_lora_rank + config.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, config.rms_norm_eps)
        self.kv_b_proj = linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + value))
        self.o_proj = linear(heads * value, config.hidden_size)
        self.indexer = Indexer(config) if config.is_full(layer_idx) else None

    def queries(self, x: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """[B,R,D], angles [B|1,R,P] -> q [B,H,R,Q], q_r [B,R,q_lora]."""
        q_r = self.q_a_layernorm(self.q_a_proj(x))
        q = self.q_b_proj(q_r).unflatten(-1, (self.config.num_attention_heads, -1))
        nope, rope = q.split((self.config.qk_nope_head_dim, self.config.qk_rope_head_dim), -1)
        return torch.cat((nope, rotate(rope, angles[..., None, :])), -1).transpose(1, 2), q_r

    def latent(self, x: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """[B,T,D] -> what is cached: latent [B,T,kv_lora] and rotated rope key [B,T,rope]."""
        c, k_pe = self.kv_a_proj_with_mqa(x).split((self.config.kv_lora_rank, self.config.qk_rope_head_dim), -1)
        return self.kv_a_layernorm(c), rotate(k_pe, angles)

    def expand(self, c: Tensor, k_pe: Tensor) -> tuple[Tensor, Tensor]:
        """Latent and rope key -> k [B,H,T,Q], v [B,H,T,V]."""
        kv = self.kv_b_proj(c).unflatten(-1, (self.config.num_attention_heads, -1)).transpose(1, 2)
        k_nope, v = kv.split((self.config.qk_nope_head_dim, self.config.v_head_dim), -1)
        k_pe = k_pe[:, None].expand(-1, self.config.num_attention_heads, -1, -1)
        return torch.cat((k_nope, k_pe), -1), v

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Attend and project: q [B,H,R,Q], k, v, mask [B,1,R,T] float or None for causal -> [B,R,D]."""
        pad = self.config.qk_head_dim - self.config.v_head_dim
        out = F.scaled_dot_product_attention(q, k, F.pad(v, (0, pad)), attn_mask=mask, is_causal=mask is None)
        return self.project(out[..., : self.config.v_head_dim])

    def project(self, out: Tensor) -> Tensor:
        """Heads' outputs [B,H,R,V] -> [B,R,D]."""
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU; [N,D] -> [N,D]."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden, inner)
        self.up_proj = linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[N,D] -> [N,D]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    """Sigmoid router whose selection, not its weights, sees the balancing bias."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[N,D] -> chosen experts [N,k] and their weights [N,k]."""
        scores = F.linear(x, self.weight).sigmoid()
        chosen = (scores + self.e_score_correction_bias).topk(self.config.num_experts_per_tok, dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * self.config.routed_scaling_factor


class MoE(nn.Module):
    """Routed experts plus the shared expert."""

    def __init__(self, config: NetConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        inner = config.moe_intermediate_size
        self.gate = Gate(config)
        self.experts = nn.ModuleList(FeedForward(config.hidden_size, inner) for _ in range(config.n_routed_experts))
        self.shared_experts = FeedForward(config.hidden_size, inner * config.n_shared_experts)

    def forward(self, x: Tensor, trace: Trace) -> Tensor:
        """[B,R,D] -> [B,R,D]."""
        flat = x.flatten(0, 1)
        chosen, weights = self.gate(flat)
        out = self.shared_experts(flat)
        loads = torch.zeros(len(self.experts))
        for idx, expert in enumerate(self.experts):
            token, place = (chosen == idx).nonzero(as_tuple=True)
            loads[idx] = len(token)
            out = out.index_add(0, token, expert(flat[token]) * weights[token, place, None])
        trace.expert_loads[self.layer_idx] = trace.expert_loads.get(self.layer_idx, 0) + loads
        return out.view_as(x)


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, config: NetConfig, layer_idx: int) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.input_layernorm = RMSNorm(config.hidden_size, eps)
        self.self_attn = Attention(config, layer_idx)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps)
        dense = layer_idx < config.first_k_dense_replace
        self.mlp = FeedForward(config.hidden_size, config.intermediate_size) if dense else MoE(config, layer_idx)

    def feed_forward(self, h: Tensor, trace: Trace) -> Tensor:
        """The second half of the layer, residual included; [B,R,D] -> [B,R,D]."""
        x = self.post_attention_layernorm(h)
        return h + (self.mlp(x, trace) if isinstance(self.mlp, MoE) else self.mlp(x))


class SharedHead(nn.Module):
    """The MTP layer's output norm; its projection is the trunk's lm_head."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class MTPLayer(Layer):
    """The draft layer: a decoder layer behind a projection of (next token's embedding, hidden state)."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__(config, config.num_hidden_layers)
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = linear(2 * config.hidden_size, config.hidden_size)
        self.shared_head = SharedHead(config)

    def join(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Embeddings of the next tokens and hidden states, both [B,R,D] -> [B,R,D]."""
        return self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1))


class Trunk(nn.Module):
    """Embedding, layers (the last one is the MTP layer) and final norm."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers: list[Layer] = [Layer(config, idx) for idx in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList([*layers, MTPLayer(config)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Net(nn.Module):
    """The language model. `sparse` says whether attention is limited to the indexer's selection."""

    def __init__(self, config: NetConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = linear(config.hidden_size, config.vocab_size)
        self.sparse = False
        pairs = torch.arange(0, config.qk_rope_head_dim, 2, dtype=torch.float64) / config.qk_rope_head_dim
        self.register_buffer("frequencies", (config.rope_theta**-pairs).float(), persistent=False)

    def angles(self, positions: Tensor) -> Tensor:
        """Positions [...] -> rotation angles [..., P]."""
        return positions[..., None].float() * self.frequencies

    def forward(self, tokens: Tensor, trace: Trace) -> Tensor:
        """Tokens [B,T] -> hidden states after the final norm [B,T,D]."""
        h = self.model.embed_tokens(tokens)
        angles = self.angles(torch.arange(tokens.shape[1]))[None]
        mask: Tensor | None = None
        meters: list[_IndexMeter] = []
        for layer in self.model.layers[:-1]:
            attn = layer.self_attn
            x = layer.input_layernorm(h)
            q, q_r = attn.queries(x, angles)
            k, v = attn.expand(*attn.latent(x, angles))
            if attn.indexer is not None:
                mask = self._selection(attn.indexer, x, q_r, angles)
                if trace.index_rows is not None:
                    meters.append(_IndexMeter(attn.indexer, x, q_r, angles, trace.index_rows))
            if trace.index_rows is not None:
                meters[-1].add_target(q, k)
            h = layer.feed_forward(h + attn.mix(q, k, v, mask), trace)
        for meter in meters:
            meter.finish(trace, self.config.index_topk)
        return self.model.norm(h)

    def logits(self, hidden: Tensor) -> Tensor:
        """[...,D] -> [...,vocab]."""
        return self.lm_head(hidden)

    def _selection(self, indexer: Indexer, x: Tensor, q_r: Tensor, angles: Tensor) -> Tensor | None:
        """Additive mask [B,1,T,T] of the indexer's choice, or None where dense attention is the same."""
        num_tokens, topk = x.shape[1], self.config.index_topk
        if not self.sparse or num_tokens <= topk:
            return None
        with torch.no_grad():
            scores = indexer.scores_by_head(*indexer.queries(x, q_r, angles), indexer.keys(x, angles))
            scores.masked_fill_(torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1), -math.inf)
            return selection_mask(scores, topk)[:, None]

    def draft_hiddens(self, tokens: Tensor, hidden: Tensor, rows: Tensor, num_steps: int, trace: Trace) -> list[Tensor]:
        """Hidden states of `num_steps` chained draft steps at sampled rows, as serving computes them.

        From tokens [B,T], hidden [B,T,D] after the final norm and rows [B,R] with rows + num_steps < T. Step i's
        result [B,R,D] predicts token rows + i + 2. Step 0 sees the MTP layer's keys of all earlier rows; a later step
        sees these and the chain's own keys, at the positions the drafts would have.
        """
        layer: MTPLayer = self.model.layers[-1]
        attn = layer.self_attn
        every = torch.arange(tokens.shape[1] - 1)
        z = layer.join(self.model.embed_tokens(tokens[:, 1:]), hidden[:, :-1])
        keys = self._draft_keys(attn, layer.input_layernorm(z), every, rows)
        h = take_rows(z, rows)
        results: list[Tensor] = []
        for step in range(num_steps):
            if step > 0:
                h = layer.join(self.model.embed_tokens(tokens.gather(1, rows + step + 1)), results[-1])
            out = self._attend_draft(attn, layer.input_layernorm(h), self.angles(rows + step), keys, step, trace)
            h = layer.feed_forward(h + out, trace)
            results.append(layer.shared_head.norm(h))
        return results

    def _draft_keys(self, attn: Attention, x: Tensor, every: Tensor, rows: Tensor) -> "_DraftKeys":
        angles = self.angles(every)[None]
        k, v = attn.expand(*attn.latent(x, angles))
        visible = every[None, None] <= rows[..., None]
        causal = torch.zeros(visible.shape).masked_fill(~visible, -math.inf)[:, None]
        return _DraftKeys(k, v, attn.indexer.keys(x.detach(), angles), causal)

    def _attend_draft(
        self, attn: Attention, x: Tensor, angles: Tensor, keys: "_DraftKeys", step: int, trace: Trace
    ) -> Tensor:
        """One draft step's attention [B,R,D]; the first step leaves its index loss in `trace`."""
        q, q_r = attn.queries(x, angles)
        topk = self.config.index_topk
        long = keys.k.shape[2] > topk
        if long and step == 0 and trace.index_rows is not None:
            dots = q @ keys.k.transpose(-1, -2) * self.config.qk_head_dim**-0.5 + keys.causal
            scores = attn.indexer.scores(*attn.indexer.queries(x.detach(), q_r.detach(), angles), keys.index)
            _record_index_loss(trace, dots.softmax(-1).mean(1).detach(), scores + keys.causal[:, 0], topk)
        mask = keys.causal
        if long and self.sparse:
            with torch.no_grad():
                scores = attn.indexer.scores_by_head(*attn.indexer.queries(x, q_r, angles), keys.index)
                mask = selection_mask(scores + keys.causal[:, 0], topk)[:, None]
        if step == 0:
            return attn.mix(q, keys.k, keys.v, mask)
        keys.add_own(*attn.expand(*attn.latent(x, angles)))
        return attn.project(keys.attend(q, mask))


class _DraftKeys:
    """What a chain of draft steps attends to: the MTP layer's keys of all rows, and each chain's own keys.

    k [B,H,T,Q], v [B,H,T,V], index keys [B,T,d], causal additive mask [B,1,R,T]; own keys and values [B,H,R,.] a step.
    """

    def __init__(self, k: Tensor, v: Tensor, index: Tensor, causal: Tensor) -> None:
        self.k, self.v, self.index, self.causal = k, v, index, causal
        self.own_k: list[Tensor] = []
        self.own_v: list[Tensor] = []

    def add_own(self, k: Tensor, v: Tensor) -> None:
        """Add the keys and values that a later step caches for itself."""
        self.own_k.append(k)
        self.own_v.append(v)

    def attend(self, q: Tensor, mask: Tensor) -> Tensor:
        """Queries [B,H,R,Q] over the shared keys and each row's own -> [B,H,R,V]."""
        scale = q.shape[-1] ** -0.5
        past = q @ self.k.transpose(-1, -2) * scale + mask
        own = torch.stack([(q * key).sum(-1) * scale for key in self.own_k], -1)
        weights = torch.cat((past, own), -1).softmax(-1)
        num_shared = self.k.shape[2]
        out = weights[..., :num_shared] @ self.v
        for idx, value in enumerate(self.own_v):
            out = out + weights[..., num_shared + idx, None] * value
        return out


class _IndexMeter:
    """Compares one indexer with the attention it stands for, at sampled query rows, without touching the trunk."""

    def __init__(self, indexer: Indexer, x: Tensor, q_r: Tensor, angles: Tensor, rows: Tensor) -> None:
        x, q_r = x.detach(), q_r.detach()
        self.rows = rows
        self.hidden = torch.arange(x.shape[1])[None] > rows[:, None]
        q, w = indexer.queries(x[:, rows], q_r[:, rows], angles[:, rows])
        self.scores = indexer.scores(q, w, indexer.keys(x, angles)).masked_fill(self.hidden, -math.inf)
        self.target = torch.zeros_like(self.scores)

    @torch.no_grad()
    def add_target(self, q: Tensor, k: Tensor) -> None:
        """Add one layer's attention q [B,H,T,Q], k [B,H,T,Q] to the target."""
        dots = q[:, :, self.rows] @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        self.target += dots.masked_fill(self.hidden, -math.inf).softmax(-1).mean(1)

    def finish(self, trace: Trace, topk: int) -> None:
        """Leave the loss and the attention mass inside the top-k in `trace`."""
        target = self.target / self.target.sum(-1, keepdim=True)
        _record_index_loss(trace, target, self.scores, topk)


def _record_index_loss(trace: Trace, target: Tensor, scores: Tensor, topk: int) -> None:
    """KL(target || softmax(scores)) over [B,R,T], and the target's mass among the top-k scores."""
    log_q = scores.log_softmax(-1).clamp_min(-60.0)
    trace.index_losses.append((target * (target.clamp_min(1e-9).log() - log_q)).sum(-1).mean())
    chosen = scores.detach().topk(min(topk, scores.shape[-1]), -1).indices
    trace.index_recalls.append(target.gather(-1, chosen).sum(-1).mean())


def selection_mask(scores: Tensor, topk: int) -> Tensor:
    """Scores [B,R,T] with -inf where hidden -> additive mask that keeps the top-k and never a hidden key."""
    chosen = scores.topk(topk, -1).indices
    mask = torch.full_like(scores, -math.inf).scatter_(-1, chosen, 0.0)
    return mask.masked_fill_(scores == -math.inf, -math.inf)


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """States [B,T,D] at rows [B,R] -> [B,R,D]."""
    return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))


def config_json(config: NetConfig) -> dict[str, Any]:
    """The checkpoint's config.json, without the token ids."""
    fields = {name: getattr(config, name) for name in NetConfig.__dataclass_fields__ if name != "rope_theta"}
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        **fields,
        "indexer_types": list(config.indexer_types),
        "num_key_value_heads": config.num_attention_heads,
        "num_nextn_predict_layers": 1,
        "index_share_for_mtp_iteration": False,
        "indexer_rope_interleave": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "moe_router_dtype": "float32",
        "initializer_range": 0.02,
    }
