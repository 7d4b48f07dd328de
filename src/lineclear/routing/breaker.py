"""A circuit breaker: whether a worker is to be given sequences, judged by how its last ones ended.

             too many ended badly                      time is up
    CLOSED ────────────────────────▶ OPEN ───────────────────────────▶ HALF_OPEN
       ▲                              ▲   a probe ended badly: twice as long │ │
       │                              └───────────────────────────────────────┘ │
       └──────────────────── enough probes ended well: slow start ──────────────┘

Invariants:
1. While half-open, it admits as long as fewer than `num_probes` sequences that began in this state are on their way or
   have ended well.
2. What began in one state never changes a later one: each sequence carries the number of the state it began in.
3. Counts decay with time, so that what a worker did an hour ago neither condemns nor excuses it.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class BreakerState(Enum):
    """What a worker is given: everything, nothing, or probes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Ending(Enum):
    """What the end of a sequence says of the worker that had it."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"
    """Nothing: the client left, for example."""


HALF_LIFE_SECONDS: Final = 60.0
"""After which an ending counts half: long enough for slow answers to add up, short enough to forget an incident."""

MIN_BAD: Final = 2.5
"""Bad endings, decayed, before a breaker opens: three within some seconds. One or two may be the model's own doing."""

BAD_SHARE: Final = 0.3
"""Of bad endings among all before a breaker opens. A worker whose KV is damaged spoils most of what it touches; one in
two thousand healthy sequences is judged broken by mistake."""

MAX_OPEN_FACTOR: Final = 16
"""How many times the first wait the longest is; each failed probe doubles it."""

FIRST_SHARE: Final = 0.1
"""Of its ordinary share of the load when a worker begins again."""


@dataclass(frozen=True, kw_only=True)
class BreakerRules:
    """How patient breakers are. `num_probes` must end well before a breaker closes, one after the other or together."""

    open_seconds: float = 5.0
    slow_start_seconds: float = 30.0
    num_probes: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Breaker:
    """One worker's breaker, as of its last event.

    `era` numbers its states; `num_bad` and `num_ended` were right at `counted_at`.
    """

    state: BreakerState = BreakerState.CLOSED
    era: int = 0
    num_bad: float = 0.0
    num_ended: float = 0.0
    counted_at: float = 0.0
    opened_at: float = 0.0
    open_seconds: float = 0.0
    num_probing: int = 0
    num_probed: int = 0
    recovered_at: float | None = None

    @property
    def bad_share(self) -> float:
        """Of bad endings among all that still count; 0 without any."""
        return self.num_bad / self.num_ended if self.num_ended else 0.0


def advance(breaker: Breaker, now: float) -> Breaker:
    """The breaker at this moment: an open one becomes half-open when its time is up."""
    if breaker.state is BreakerState.OPEN and now >= breaker.opened_at + breaker.open_seconds:
        return replace(breaker, state=BreakerState.HALF_OPEN, era=breaker.era + 1, num_probing=0, num_probed=0)
    return breaker


def admits(breaker: Breaker, rules: BreakerRules) -> bool:
    """Whether a sequence may begin; ask an advanced breaker."""
    match breaker.state:
        case BreakerState.CLOSED:
            return True
        case BreakerState.OPEN:
            return False
        case BreakerState.HALF_OPEN:
            return breaker.num_probing + breaker.num_probed < rules.num_probes


def begin(breaker: Breaker, num_sequences: int = 1) -> Breaker:
    """Sequences begin, whether or not they were admitted: who has nobody else is given them all the same."""
    if breaker.state is BreakerState.HALF_OPEN:
        return replace(breaker, num_probing=breaker.num_probing + num_sequences)
    return breaker


def end(
    breaker: Breaker, ending: Ending, era: int, now: float, rules: BreakerRules, *, may_open: bool = True
) -> Breaker:
    """A sequence that began in `era` ends.

    Args:
        breaker: the breaker, advanced.
        ending: how.
        era: the breaker's when it began.
        now: seconds.
        rules: how patient.
        may_open: whether a closed breaker may open now; without, a bad ending only counts.
    """
    if era != breaker.era:
        return breaker
    if breaker.state is BreakerState.HALF_OPEN:
        return _end_probe(breaker, ending, now, rules)
    if ending is Ending.NEUTRAL or breaker.state is BreakerState.OPEN:
        return breaker
    counted = _count(breaker, ending, now)
    if may_open and ending is Ending.BAD and counted.num_bad >= MIN_BAD and counted.bad_share >= BAD_SHARE:
        return _open(counted, now, _next_wait(breaker, now, rules))
    return counted


def weight(breaker: Breaker, now: float, rules: BreakerRules) -> float:
    """The part of its ordinary load that a worker is to get now, above 0, at most 1."""
    if breaker.recovered_at is None or rules.slow_start_seconds <= 0:
        return 1.0
    elapsed = (now - breaker.recovered_at) / rules.slow_start_seconds
    return min(1.0, max(FIRST_SHARE, elapsed))


def restart(breaker: Breaker, now: float) -> Breaker:
    """The worker has come back as a new life: it begins slowly, with cold caches. The breaker stays as it is."""
    return replace(breaker, recovered_at=now)


def _end_probe(breaker: Breaker, ending: Ending, now: float, rules: BreakerRules) -> Breaker:
    num_probing = max(0, breaker.num_probing - 1)
    match ending:
        case Ending.NEUTRAL:
            return replace(breaker, num_probing=num_probing)
        case Ending.BAD:
            longest = MAX_OPEN_FACTOR * rules.open_seconds
            return _open(_count(breaker, ending, now), now, min(longest, 2 * breaker.open_seconds))
        case Ending.GOOD:
            if breaker.num_probed + 1 >= rules.num_probes:
                closed = Breaker(era=breaker.era + 1, counted_at=now, recovered_at=now)
                return replace(closed, open_seconds=breaker.open_seconds)
            return replace(breaker, num_probing=num_probing, num_probed=breaker.num_probed + 1)


def _next_wait(breaker: Breaker, now: float, rules: BreakerRules) -> float:
    """Who opens again soon after it recovered waits longer than before."""
    is_relapse = breaker.recovered_at is not None and now < breaker.recovered_at + rules.slow_start_seconds
    if not is_relapse or not breaker.open_seconds:
        return rules.open_seconds
    return min(MAX_OPEN_FACTOR * rules.open_seconds, 2 * breaker.open_seconds)


def _open(breaker: Breaker, now: float, open_seconds: float) -> Breaker:
    return replace(
        breaker,
        state=BreakerState.OPEN,
        era=breaker.era + 1,
        opened_at=now,
        open_seconds=open_seconds,
        num_probing=0,
        num_probed=0,
    )


def _count(breaker: Breaker, ending: Ending, now: float) -> Breaker:
    decay = 0.5 ** (max(0.0, now - breaker.counted_at) / HALF_LIFE_SECONDS)
    return replace(
        breaker,
        num_bad=breaker.num_bad * decay + (ending is Ending.BAD),
        num_ended=breaker.num_ended * decay + 1,
        counted_at=now,
    )
