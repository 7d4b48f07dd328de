"""Deals the tokens of a batch to ranks, so that all have about the same to compute.

A token costs a fixed amount and as much again for every `double_cost_len` positions before it. A chunk is cut in
stripes, so many and so small that all stripes together are about twice as many as the ranks; the dearest stripe goes
first, each to the rank with least so far. One long chunk comes out as a zigzag: a rank gets one stripe of its
beginning and one of its end.

    chunk   │ 0 │ 1 │ 2 │ 3 │ 3 │ 2 │ 1 │ 0 │      four ranks
             cheap ──────────────────▶ dear

Invariants:
1. Every token is dealt to exactly one rank.
2. The costs of two ranks differ by at most the cost of the dearest stripe.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

STRIPES_PER_RANK = 2


class Span(NamedTuple):
    """Positions [start, end) of one sequence: a chunk."""

    start: int
    end: int


class Stripe(NamedTuple):
    """Positions [start, end) of chunk `chunk_idx`."""

    chunk_idx: int
    start: int
    end: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the stripe."""
        return self.end - self.start


def deal(chunks: Sequence[Span], size: int, double_cost_len: int) -> tuple[tuple[Stripe, ...], ...]:
    """Deal a batch to `size` ranks.

    Returns: for each rank its stripes, in the order of the batch; neighbours that follow one another are one stripe.
    """
    total = sum(cost(chunk.start, chunk.end, double_cost_len) for chunk in chunks)
    stripes = [stripe for idx, chunk in enumerate(chunks) for stripe in _cut(idx, chunk, size, total, double_cost_len)]
    loads = [0] * size
    hands: list[list[Stripe]] = [[] for _ in range(size)]
    for stripe in sorted(stripes, key=lambda each: (-cost(each.start, each.end, double_cost_len), each)):
        rank = min(range(size), key=lambda each: (loads[each], each))
        loads[rank] += cost(stripe.start, stripe.end, double_cost_len)
        hands[rank].append(stripe)
    return tuple(_joined(sorted(hand)) for hand in hands)


def cost(start: int, end: int, double_cost_len: int) -> int:
    """What the tokens at positions [start, end) cost: each `double_cost_len`, and its position."""
    num_tokens = end - start
    return num_tokens * double_cost_len + num_tokens * (start + end - 1) // 2


def _cut(chunk_idx: int, chunk: Span, size: int, total: int, double_cost_len: int) -> list[Stripe]:
    num_tokens = chunk.end - chunk.start
    wanted = -(-STRIPES_PER_RANK * size * cost(chunk.start, chunk.end, double_cost_len) // total)
    count = max(1, min(num_tokens, wanted))
    bounds = [chunk.start + num_tokens * idx // count for idx in range(count + 1)]
    return [Stripe(chunk_idx, start, end) for start, end in pairwise(bounds)]


def _joined(stripes: Sequence[Stripe]) -> tuple[Stripe, ...]:
    joined: list[Stripe] = []
    for stripe in stripes:
        if joined and joined[-1].chunk_idx == stripe.chunk_idx and joined[-1].end == stripe.start:
            joined[-1] = Stripe(stripe.chunk_idx, joined[-1].start, stripe.end)
        else:
            joined.append(stripe)
    return tuple(joined)
