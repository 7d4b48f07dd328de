"""Signatures of the model's tensor operations, and the table of functions that a model is built on.

A table is complete and explicit: the plain-torch reference (`reference.py`), the CPU's batch-invariant one
(`invariant.py`), and device kernels beside them later. Every table must agree with the reference.

Legend: T tokens, R rows, D hidden width, H heads, C latent width, W = C + rope width, S sequences, N tokens of each, I
heads of the indexer, J their width, P positions of the context, K selected slots, E experts, F expert width, A active
experts.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Matmul(Protocol):
    """Multiply rows by a weight that is stored input-major."""

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Shapes: x: [..., R, in]; weight: [..., in, out], same leading dims; returns [..., R, out]."""
        ...


class RmsNorm(Protocol):
    """Divide rows by their root mean square, computed in fp32, and scale."""

    def __call__(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        """Shapes: x: [R, width]; weight: [width], None for ones; returns x's shape and type."""
        ...


class LayerNorm(Protocol):
    """Normalise rows to mean 0 and variance 1, then scale and shift."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Shapes: x: [R, width]; weight, bias: [width]; returns x's shape and type."""
        ...


class Rotate(Protocol):
    """Rotary embedding of interleaved pairs, in fp32."""

    def __call__(self, x: Tensor, cis: Tensor) -> None:
        """Rotate pairs `(x[2i], x[2i+1])` by the angle of `cis[i]`.

        Shapes: x: [T, rope width] or [T, heads, rope width]; cis: [T, rope width / 2] or [T, 1, rope width / 2]
        complex64. Mutates: x.
        """
        ...


class SiluMul(Protocol):
    """The gate of a gated MLP."""

    def __call__(self, gate_up: Tensor) -> Tensor:
        """Shapes: gate_up: [..., 2F], gate first; returns silu(gate) * up, [..., F]."""
        ...


class Gather(Protocol):
    """Read slots of a cache."""

    def __call__(self, cache: Tensor, slots: Tensor) -> Tensor:
        """Shapes: cache: [num_slots, width]; slots: [S, P] int64; returns [S, P, width], valid until the next call."""
        ...


class IndexScores(Protocol):
    """The indexer's score of every position of a context, for each query token."""

    def __call__(self, queries: Tensor, head_weights: Tensor, keys: Tensor) -> Tensor:
        """Sum over heads of `head_weight * relu(query . key)`, in fp32.

        Shapes: queries: [S, N, I, J] fp32; head_weights: [S, N, I] fp32; keys: [S, P, J] fp32, P a multiple of the
        table's `key_tile`; returns [S, N, P] fp32, valid until the next call.
        Cost: memory beyond the result is bounded by a tile, not by P.
        """
        ...


class SelectPositions(Protocol):
    """The best positions of each row."""

    def __call__(self, scores: Tensor, count: int) -> Tensor:
        """Higher score first, equal scores: lower position first; the result is in ascending order of position.

        Shapes: scores: [R, P] fp32 without NaN, P >= count; returns [R, count] int64.
        """
        ...


class LatentAttention(Protocol):
    """Attention of each token over its own selected slots, in the latent space (absorbed form)."""

    def __call__(
        self, queries: Tensor, cache: Tensor, slots: Tensor, beyond: Tensor | None, latent_width: int
    ) -> Tensor:
        """Softmax over `slots[t]` without the places that are `beyond`; the queries are scaled already.

        Shapes: queries: [T, H, W]; cache: [num_slots, W], the latent before the rope key; slots: [T, K] int64; beyond:
        [T, 1, K] bool, None for nowhere; returns the attended latent, [T, H, C].
        """
        ...


class Experts(Protocol):
    """The weighted sum of each token's routed experts, plus the shared experts."""

    def __call__(
        self, x: Tensor, expert_ids: Tensor, expert_weights: Tensor, gate_up: Tensor, down: Tensor, num_shared: int
    ) -> Tensor:
        """Sum over `a` of `expert_weights[t, a] * mlp[expert_ids[t, a]](x[t])`, and over the shared ones with weight 1.

        Shapes: x: [T, D]; expert_ids: [T, A] int64; expert_weights: [T, A] fp32; gate_up: [D, E * 2F], each expert's
        gate before its up; down: [E, F, D]; returns [T, D]. The last `num_shared` of the E experts are the shared ones.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ops:
    """The functions that a model computes with.

    `min_rows`: the fewest rows a pass may have for the table's promises to hold; the model pads up to it. `key_tile`:
    the model pads a context that is scored to a multiple of it.
    """

    matmul: Matmul
    rms_norm: RmsNorm
    layer_norm: LayerNorm
    rotate: Rotate
    silu_mul: SiluMul
    gather: Gather
    index_scores: IndexScores
    select_positions: SelectPositions
    latent_attention: LatentAttention
    experts: Experts
    min_rows: int
    key_tile: int
