"""How sure a difference of two variants is that took turns."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NUM_SAMPLES = 4000


@dataclass(frozen=True)
class Interval:
    """A median and the 95 % interval around it."""

    median: float
    low: float
    high: float


def bootstrap(values: Sequence[float]) -> Interval:
    """The median of paired differences or ratios, and where it lies in 95 % of samples drawn from them."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(NUM_SAMPLES))
    return Interval(statistics.median(values), medians[NUM_SAMPLES // 40], medians[-NUM_SAMPLES // 40])
