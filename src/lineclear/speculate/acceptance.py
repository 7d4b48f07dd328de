"""The rule by which a verify keeps drafts: what comes out is distributed as if there had been no drafts.

Greedy: keep the drafts that the target would have chosen itself, then take its choice.

Sampled: draft x, drawn from q, is kept with probability min(1, p(x) / q(x)), where p is the target's distribution in
its place. The first draft that is not kept is replaced by a draw from max(0, p - q), renormalised, and ends the
verify; if all are kept, one more token is drawn from the target. With m = min(p, q) and r = max(0, p - q), what comes
out is x with probability m(x) + (1 - Σm) · r(x) / Σr = m(x) + r(x) = p(x), because Σr = 1 - Σm.

Randomness comes in as uniforms in [0, 1). Rows are plain sequences of numbers (fractions too, for proofs) or numpy
arrays (fast for large vocabularies).

Legend: k drafts, vocabulary V; `target_probs` [k + 1][V], `draft_probs` [k][V].

Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), algorithm 1;
Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023), algorithm 2.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from lineclear.base.errors import InvariantError

Row = Sequence[float] | NDArray[np.floating]
Rows = Sequence[Row] | NDArray[np.floating]


def verify_greedy(target_argmax: Sequence[int], draft_token_ids: Sequence[int]) -> tuple[int, int]:
    """Keep the drafts that equal the target's choices; return how many, and the target's choice after them.

    Shapes: target_argmax [k + 1], draft_token_ids [k].
    """
    if len(target_argmax) != len(draft_token_ids) + 1:
        raise InvariantError(
            f"{len(draft_token_ids)} drafts and {len(target_argmax)} target rows, allowed: one more row"
        )
    num_accepted = 0
    for draft, choice in zip(draft_token_ids, target_argmax, strict=False):
        if draft != choice:
            break
        num_accepted += 1
    return num_accepted, target_argmax[num_accepted]


def verify_sampled(
    target_probs: Rows,
    draft_probs: Rows,
    draft_token_ids: Sequence[int],
    uniforms: Sequence[float],
    uniform_final: float,
) -> tuple[int, int]:
    """Keep drafts by rejection sampling; return how many, and the token after them.

    Shapes: target_probs [k + 1][V], draft_probs [k][V], draft_token_ids [k], uniforms [k] in [0, 1).
    Cost: O(k), and O(V) once.
    """
    for position, draft in enumerate(draft_token_ids):
        target_row, draft_row = target_probs[position], draft_probs[position]
        if uniforms[position] * draft_row[draft] >= target_row[draft]:
            return position, _draw_residual(target_row, draft_row, uniform_final)
    num_drafts = len(draft_token_ids)
    return num_drafts, draw(target_probs[num_drafts], uniform_final)


def draw(weights: Row, uniform: float) -> int:
    """Return the token at which the running sum of the weights first exceeds `uniform` of their total.

    The weights need not sum to 1. A token without weight is never drawn.

    Raises: InvariantError if no token has weight.
    """
    token_id = _draw_array(weights, uniform) if isinstance(weights, np.ndarray) else _draw_plain(weights, uniform)
    if token_id is None:
        raise InvariantError("nothing to draw from: no token has weight")
    return token_id


def _draw_residual(target_row: Row, draft_row: Row, uniform: float) -> int:
    if isinstance(target_row, np.ndarray):
        residual: Row = np.maximum(target_row - np.asarray(draft_row), 0)
        has_weight = bool(residual.any())
    else:
        residual = [max(p - q, 0) for p, q in zip(target_row, draft_row, strict=True)]
        has_weight = any(residual)
    # Equal rows reject nothing but by rounding, and then any draw from the target is as good.
    return draw(residual if has_weight else target_row, uniform)


def _draw_array(weights: NDArray[np.floating], uniform: float) -> int | None:
    sums = np.cumsum(weights, dtype=np.float64)
    token_id = int(np.searchsorted(sums, uniform * float(sums[-1]), side="right"))
    if token_id < len(sums):
        return token_id
    # Rounding carried the product up to the total.
    return max(np.flatnonzero(weights).tolist(), default=None)


def _draw_plain(weights: Sequence[float], uniform: float) -> int | None:
    sums = list(accumulate(weights))
    threshold = uniform * sums[-1]
    for token_id, running in enumerate(sums):
        if running > threshold:
            return token_id
    return max((token_id for token_id, weight in enumerate(weights) if weight > 0), default=None)
