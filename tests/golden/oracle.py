"""The draft layer written out densely, from a checkpoint's own tensors: every score, mask and expert in full.

There is no published implementation of it for this model type; the equations are those of DeepSeek-V3's report (2.2)
and of the model's own decoder layers.
"""

from typing import Any

import torch
from torch import Tensor


class DraftOracle:
    """The draft layer over a whole sequence at once, in fp64."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self._config = config
        self._tensors = tensors
        self._prefix = f"model.layers.{config['num_hidden_layers']}."

    def run(self, hidden: Tensor, next_token_ids: Tensor, given: dict[int, set[int]] | None = None) -> Tensor:
        """Outputs after the last norm, [T, D]; `given` fixes what some tokens attend to."""
        embedded = self._raw("model.embed_tokens.weight")[next_token_ids]
        joined = torch.cat([self._norm(embedded, "enorm"), self._norm(hidden.double(), "hnorm")], dim=-1)
        state = self._linear(joined, "eh_proj")
        x = self._norm(state, "input_layernorm")
        state = state + self._attention(x, self.selected(x), given or {})
        x = self._norm(state, "post_attention_layernorm")
        return self._norm(state + self._experts(x), "shared_head.norm")

    def logits(self, output: Tensor) -> Tensor:
        return output.double() @ self._raw("lm_head.weight").T

    def selected(self, x: Tensor) -> list[set[int]]:
        """The best `index_topk` positions of each token by the index scores."""
        config = self._config
        heads, width = config["index_n_heads"], config["index_head_dim"]
        queries = self._linear(self._query_latent(x), "self_attn.indexer.wq_b").unflatten(-1, (heads, width))
        keys = torch.nn.functional.layer_norm(
            self._linear(x, "self_attn.indexer.wk"),
            (width,),
            self._weight("self_attn.indexer.k_norm"),
            self._raw(f"{self._prefix}self_attn.indexer.k_norm.bias"),
            1e-6,
        )
        rope = config["qk_rope_head_dim"]
        queries = torch.cat([self._rotate(queries[..., :rope]), queries[..., rope:]], dim=-1)
        keys = torch.cat([self._rotate(keys[:, None, :rope])[:, 0], keys[:, rope:]], dim=-1)
        weights = self._linear(x, "self_attn.indexer.weights_proj")
        scores = (torch.einsum("thd,sd->ths", queries, keys).relu() * weights[..., None]).sum(1)
        return [
            set(row[: token + 1].topk(min(config["index_topk"], token + 1)).indices.tolist())
            for token, row in enumerate(scores)
        ]

    def _attention(self, x: Tensor, selected: list[set[int]], given: dict[int, set[int]]) -> Tensor:
        config = self._config
        heads, nope, rope = config["num_attention_heads"], config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        latent_width = config["kv_lora_rank"]
        queries = self._linear(self._query_latent(x), "self_attn.q_b_proj").unflatten(-1, (heads, nope + rope))
        compressed = self._linear(x, "self_attn.kv_a_proj_with_mqa")
        latent = self._norm(compressed[:, :latent_width], "self_attn.kv_a_layernorm", 1e-6)
        rope_keys = self._rotate(compressed[:, None, latent_width:]).expand(-1, heads, -1)
        keys, values = (
            self._linear(latent, "self_attn.kv_b_proj")
            .unflatten(-1, (heads, -1))
            .split([nope, config["v_head_dim"]], dim=-1)
        )
        queries = torch.cat([queries[..., :nope], self._rotate(queries[..., nope:])], dim=-1)
        scores = torch.einsum("thd,shd->hts", queries, torch.cat([keys, rope_keys], dim=-1)) * (nope + rope) ** -0.5
        mask = torch.full((len(x), len(x)), -torch.inf, dtype=torch.float64)
        for token, positions in enumerate(selected):
            mask[token, list(given.get(token, positions))] = 0
        attended = torch.einsum("hts,shv->thv", (scores + mask).softmax(-1), values)
        return self._linear(attended.flatten(1), "self_attn.o_proj")

    def _experts(self, x: Tensor) -> Tensor:
        config = self._config
        affinities = self._linear(x, "mlp.gate").sigmoid()
        choice = affinities + self._raw(f"{self._prefix}mlp.gate.e_score_correction_bias")
        ids = choice.topk(config["num_experts_per_tok"], dim=-1).indices
        weights = torch.zeros_like(affinities).scatter(1, ids, affinities.gather(1, ids))
        weights = weights / weights.sum(-1, keepdim=True) * config["routed_scaling_factor"]
        outputs = [self._mlp(x, f"mlp.experts.{expert}") for expert in range(config["n_routed_experts"])]
        return torch.einsum("te,etd->td", weights, torch.stack(outputs)) + self._mlp(x, "mlp.shared_experts")

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate = torch.nn.functional.silu(self._linear(x, f"{name}.gate_proj"))
        return self._linear(gate * self._linear(x, f"{name}.up_proj"), f"{name}.down_proj")

    def _query_latent(self, x: Tensor) -> Tensor:
        return self._norm(self._linear(x, "self_attn.q_a_proj"), "self_attn.q_a_layernorm", 1e-6)

    def _rotate(self, x: Tensor) -> Tensor:
        """Interleaved pairs of [T, heads, width], token t at position t."""
        width = x.shape[-1]
        theta = self._config["rope_parameters"]["rope_theta"]
        angles = torch.arange(len(x))[:, None] * theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)

    def _norm(self, x: Tensor, name: str, eps: float | None = None) -> Tensor:
        eps = self._config["rms_norm_eps"] if eps is None else eps
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * self._weight(name)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self._weight(name).T

    def _weight(self, name: str) -> Tensor:
        return self._raw(f"{self._prefix}{name}.weight")

    def _raw(self, name: str) -> Tensor:
        return self._tensors[name].double()
