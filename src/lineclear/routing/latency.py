"""How fast a worker answers, against the others: one that is far slower is treated as one that fails."""

import statistics
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

SMOOTHING: Final = 0.1
"""The weight of the newest sequence in a worker's figure."""

MIN_SEQUENCES: Final = 10
"""Sequences before a worker's figure says anything."""

SLOW_RATIO: Final = 8.0
"""How many times the others' median is too slow. Batches and prompts of all sizes stay well within it."""

SLOW_SECONDS_PER_TOKEN: Final = 0.25
"""No worker is slow below this: slower than people read."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds for each output token, smoothed over sequences."""

    seconds_per_token: float = 0.0
    num_sequences: int = 0


def add(pace: Pace, seconds: float, num_tokens: int) -> Pace:
    """A sequence took so long for so many tokens after its first; without any it says nothing."""
    if num_tokens < 1:
        return pace
    newest = seconds / num_tokens
    smoothing = max(SMOOTHING, 1 / (pace.num_sequences + 1))
    smoothed = pace.seconds_per_token + smoothing * (newest - pace.seconds_per_token)
    return replace(pace, seconds_per_token=smoothed, num_sequences=pace.num_sequences + 1)


def is_slow(pace: Pace, others: Collection[Pace]) -> bool:
    """Whether a worker is far slower than the others that are known; without any nobody is slow."""
    known = [each.seconds_per_token for each in others if each.num_sequences >= MIN_SEQUENCES]
    if not known or pace.num_sequences < MIN_SEQUENCES or pace.seconds_per_token < SLOW_SECONDS_PER_TOKEN:
        return False
    return pace.seconds_per_token > SLOW_RATIO * statistics.median(known)
