"""The feed-forward half of a layer: a gated MLP, or a mixture of experts.

Legend: R rows, D hidden width, E routed experts, A active ones (shared experts included).
"""

import torch
from torch import Tensor

from lineclear.kernels.ops import Ops
from lineclear.model.config import GlmConfig
from lineclear.model.weights import DenseWeights, MoeWeights

_NORMALIZING_EPS = 1e-20
"""Added to the sum of a token's expert weights before dividing by it, as published."""


class DenseMlp:
    """A gated MLP."""

    def __init__(self, weights: DenseWeights, ops: Ops) -> None:
        self._weights = weights
        self._ops = ops

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: x: [R, D]; returns [R, D]."""
        inner = self._ops.silu_mul(self._ops.matmul(x, self._weights.gate_up))
        return self._ops.matmul(inner, self._weights.down)


class MoeMlp:
    """A mixture of experts; the shared experts are experts that every token takes with weight 1."""

    def __init__(self, config: GlmConfig, weights: MoeWeights, ops: Ops) -> None:
        self._config = config
        self._weights = weights
        self._ops = ops

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: x: [R, D]; returns [R, D]."""
        ids, expert_weights = self.route(x)
        weights = self._weights
        return self._ops.experts(x, ids, expert_weights, weights.gate_up, weights.down, self._config.n_shared_experts)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose each token's routed experts, in fp32: the bias takes part in the choice, not in the weights.

        Shapes: x: [R, D]; returns ids and weights, both [R, A].
        """
        config = self._config
        affinities = self._ops.matmul(x.float(), self._weights.negative_router).exp_().add_(1).reciprocal_()
        choice = affinities + self._weights.router_bias
        if config.n_group > 1:
            choice = self._within_best_groups(choice)
        ids = torch.topk(choice, config.num_experts_per_tok, dim=-1).indices
        weights = affinities.gather(1, ids)
        if config.norm_topk_prob:
            weights.div_(weights.sum(dim=-1, keepdim=True).add_(_NORMALIZING_EPS))
        return ids, weights.mul_(config.routed_scaling_factor)

    def _within_best_groups(self, choice: Tensor) -> Tensor:
        """Rule out experts outside the groups whose two best experts are best together."""
        grouped = choice.unflatten(1, (self._config.n_group, -1))
        group_scores = grouped.topk(2, dim=-1).values.sum(dim=-1)
        best = group_scores.topk(self._config.topk_group, dim=-1).indices
        is_out = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, best, value=False)
        return grouped.masked_fill(is_out.unsqueeze(-1), -torch.inf).flatten(1)
