"""Figures of a trace: lengths, hits by capacity, concurrency, new tokens of each turn. All by nearest rank."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lineclear.trace.codec import common_prefix_len
from lineclear.trace.requests import TracedRequest


@dataclass(frozen=True)
class HitRate:
    """What a prefix cache with so much room would have found.

    Units: capacity_tokens in tokens, None without bound; rate is a share of all prompt tokens.
    """

    capacity_tokens: int | None
    rate: float


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` (0..1) of them are at or below.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("values: got none, allowed: at least one")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def in_order(requests: Iterable[TracedRequest]) -> list[TracedRequest]:
    """By arrival; those of one moment as they come."""
    return sorted(requests, key=lambda each: each.arrived.at_s)


def hit_rate(requests: Sequence[TracedRequest], block_len: int, capacity_tokens: int | None) -> HitRate:
    """Run the prompts, in this order, through a cache that gives up the block that was used longest ago.

    A prompt is found up to its first block that is not there. Its last token is always computed, as engines do. A
    prompt that is in work counts as there: hits are those of a server that is never behind.

    Cost: O(blocks of all prompts).
    """
    room = math.inf if capacity_tokens is None else capacity_tokens // block_len
    cache: OrderedDict[int, None] = OrderedDict()
    num_hit, num_tokens = 0, 0
    for request in requests:
        blocks, prompt_len = request.arrived.blocks, request.arrived.prompt_len
        found = next((idx for idx, block in enumerate(blocks) if block not in cache), len(blocks))
        num_hit += min(found * block_len, prompt_len - 1)
        num_tokens += prompt_len
        for block in reversed(blocks):  # the prompt's beginning is the last to go
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > room:
            cache.popitem(last=False)
    return HitRate(capacity_tokens, num_hit / num_tokens if num_tokens else 0.0)


def new_token_counts(requests: Sequence[TracedRequest], block_len: int) -> list[int]:
    """Of each turn but a session's first, the prompt tokens past what it shares with the turn before."""
    last: dict[str, tuple[int, ...]] = {}
    counts: list[int] = []
    for request in requests:
        arrived = request.arrived
        if not arrived.session:
            continue
        if arrived.session in last:
            shared = common_prefix_len(last[arrived.session], arrived.blocks) * block_len
            counts.append(arrived.prompt_len - min(shared, arrived.prompt_len))
        last[arrived.session] = arrived.blocks
    return counts


def concurrency(requests: Sequence[TracedRequest]) -> list[tuple[float, int]]:
    """How many requests are open from each moment on (seconds), of those whose end is known."""
    changes: dict[float, int] = {}
    for request in requests:
        if request.ended_s is not None and request.ended_s > request.arrived.at_s:
            changes[request.arrived.at_s] = changes.get(request.arrived.at_s, 0) + 1
            changes[request.ended_s] = changes.get(request.ended_s, 0) - 1
    steps: list[tuple[float, int]] = []
    num_open = 0
    for at_s in sorted(changes):
        num_open += changes[at_s]
        steps.append((at_s, num_open))
    return steps
