"""The model's operations in plain torch, on any device: the truth that every other table must match.

Written to be read, not to be fast; the shapes are those of `ops.py`.
"""

import torch
from torch import Tensor

from lineclear.kernels.ops import Ops


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Rows times weight."""
    return torch.matmul(x, weight)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm; the scale is applied in x's own type, as published checkpoints expect."""
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return normed if weight is None else normed * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm over the last dim."""
    return torch.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rotate(x: Tensor, cis: Tensor) -> None:
    """Rotary embedding of interleaved pairs, in place."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    x.copy_(torch.view_as_real(pairs * cis).flatten(-2))


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def gather(cache: Tensor, slots: Tensor) -> Tensor:
    """Rows of the cache."""
    return cache[slots]


def index_scores(queries: Tensor, head_weights: Tensor, keys: Tensor) -> Tensor:
    """Scores of every position, with all heads' products in memory at once."""
    products = torch.einsum("snij,spj->snip", queries, keys).relu()
    return torch.einsum("sni,snip->snp", head_weights, products)


def select_positions(scores: Tensor, count: int) -> Tensor:
    """The first `count` positions of a stable descending sort."""
    best = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :count]
    return torch.sort(best, dim=-1).values


def latent_attention(queries: Tensor, cache: Tensor, slots: Tensor, beyond: Tensor | None, latent_width: int) -> Tensor:
    """Gather every token's slots and attend to them."""
    gathered = cache[slots]
    scores = torch.einsum("thw,tkw->thk", queries, gathered)
    if beyond is not None:
        scores = scores.masked_fill(beyond, -torch.inf)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(queries.dtype)
    return torch.einsum("thk,tkc->thc", weights, gathered[..., :latent_width])


def experts(
    x: Tensor, expert_ids: Tensor, expert_weights: Tensor, gate_up: Tensor, down: Tensor, num_shared: int
) -> Tensor:
    """One expert after the other over the tokens that activate it."""
    gate_up_of = gate_up.unflatten(1, (down.shape[0], -1))
    total = torch.zeros_like(x)
    for expert in expert_ids.unique().tolist():
        token_idxs, places = torch.nonzero(expert_ids == expert, as_tuple=True)
        output = silu_mul(x[token_idxs] @ gate_up_of[:, expert]) @ down[expert]
        weights = expert_weights[token_idxs, places].unsqueeze(-1)
        total.index_add_(0, token_idxs, (output * weights).to(x.dtype))
    for expert in range(down.shape[0] - num_shared, down.shape[0]):
        total += silu_mul(x @ gate_up_of[:, expert]) @ down[expert]
    return total


REFERENCE = Ops(
    matmul=matmul,
    rms_norm=rms_norm,
    layer_norm=layer_norm,
    rotate=rotate,
    silu_mul=silu_mul,
    gather=gather,
    index_scores=index_scores,
    select_positions=select_positions,
    latent_attention=latent_attention,
    experts=experts,
    min_rows=1,
    key_tile=1,
)
