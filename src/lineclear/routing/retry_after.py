"""When a client that finds no room is to ask again."""

from dataclasses import dataclass, replace
from typing import Final

LEAST_SECONDS: Final = 1
MOST_SECONDS: Final = 60
"""Some clients give up at once if they are told to wait for two minutes."""

WINDOW_SECONDS: Final = 30.0
"""Over which ends are counted, roughly."""


@dataclass(frozen=True, slots=True)
class EndRate:
    """How many sequences end in a second: a count that decays, as of `at`."""

    count: float = 0.0
    at: float = 0.0


def add_end(rate: EndRate, now: float) -> EndRate:
    """A sequence ended."""
    return replace(rate, count=_decayed(rate, now) + 1, at=now)


def retry_after_seconds(rate: EndRate, now: float, *, num_ahead: int) -> int:
    """The time in which so many sequences end, 1 to 60 s; 2 s while nothing has ended lately.

    Args:
        rate: of ends.
        now: seconds.
        num_ahead: sequences that must end before the client's can begin to wait.
    """
    per_second = _decayed(rate, now) / WINDOW_SECONDS
    if per_second < 1 / MOST_SECONDS:
        return 2
    return min(MOST_SECONDS, max(LEAST_SECONDS, round(num_ahead / per_second)))


def _decayed(rate: EndRate, now: float) -> float:
    return rate.count * 0.5 ** (max(0.0, now - rate.at) / (WINDOW_SECONDS / 2))
