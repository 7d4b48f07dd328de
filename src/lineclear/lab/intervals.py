"""How far a counted share may be from the true one.

Source: Clopper and Pearson (1934) for the exact interval; Wilson (1927) for the score interval.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from lineclear.base.errors import ConfigError

_Z_95 = 1.959963984540054
_STEPS = 60
"""Of a bisection: to the last bit of a share."""


class Interval(NamedTuple):
    """Bounds of a share, 0 to 1."""

    low: float
    high: float


def wilson_interval(num_found: int, num_all: int) -> Interval:
    """Return the 95 % score interval.

    Raises: ConfigError if there are more found than there are, or none at all.
    """
    _check(num_found, num_all)
    share, z2 = num_found / num_all, _Z_95**2
    middle = share + z2 / (2 * num_all)
    reach = _Z_95 * math.sqrt(share * (1 - share) / num_all + z2 / (4 * num_all**2))
    scale = 1 + z2 / num_all
    low = 0.0 if num_found == 0 else (middle - reach) / scale
    high = 1.0 if num_found == num_all else (middle + reach) / scale
    return Interval(low, high)


def exact_interval(num_found: int, num_all: int, confidence: float = 0.95) -> Interval:
    """Return the exact interval; of none found the upper bound is one-sided: 3 in 10,000 for 0 in 10,000 at 95 %.

    Raises: ConfigError if there are more found than there are, or none at all.
    """
    _check(num_found, num_all)
    if num_found == 0:
        return Interval(0.0, 1 - (1 - confidence) ** (1 / num_all))
    if num_found == num_all:
        return Interval((1 - confidence) ** (1 / num_all), 1.0)
    tail = (1 - confidence) / 2
    low = _solve(lambda share: 1 - _at_most(num_found - 1, num_all, share) < tail)
    high = _solve(lambda share: _at_most(num_found, num_all, share) > tail)
    return Interval(low, high)


def _solve(is_below: Callable[[float], bool]) -> float:
    """The share at which a monotone predicate turns false."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if is_below(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(num_found: int, num_all: int, share: float) -> float:
    """The chance of at most so many, each with this share."""
    if share <= 0.0:
        return 1.0
    if share >= 1.0:
        return float(num_found >= num_all)
    log_in, log_out = math.log(share), math.log1p(-share)
    choose = math.lgamma(num_all + 1)
    terms = (
        choose
        - math.lgamma(count + 1)
        - math.lgamma(num_all - count + 1)
        + count * log_in
        + (num_all - count) * log_out
        for count in range(num_found + 1)
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def _check(num_found: int, num_all: int) -> None:
    if num_all < 1:
        raise ConfigError("num_all", num_all, "at least 1")
    if not 0 <= num_found <= num_all:
        raise ConfigError("num_found", num_found, f"0 to {num_all}")
