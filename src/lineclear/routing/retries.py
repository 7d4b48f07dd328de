"""What becomes of a choice whose sequence was broken: another attempt, or an error. Never a clean end.

    broken ──▶ retry or fail? ── fail ──────────────────────────────────────────────▶ GiveUp
                   └─ retry ── sent something that may not be resumed ──────────────▶ GiveUp
                                  └─ attempts, tokens or seconds are used up ───────▶ GiveUp
                                        └─ the fleet has no retries left ───────────▶ GiveUp
                                              └─ else ── Again, perhaps for the last time

The last attempt is not stopped whatever the guard sees in it: what goes wrong at every worker is the model's own doing.

Invariants:
1. A choice has at most `max_attempts` attempts, of which at most the last is not stopped.
2. Of the fleet's retries one is taken for each `Again`, and none otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """How far retries go for one choice.

    Args:
        max_attempts: the first one included, at least 1.
        max_tokens: that all its attempts together may have generated in vain.
        max_seconds: since the request was accepted, after which none begins.
        resumes: whether an answer of which the client has a part is continued; else that is an error.
    """

    max_attempts: int = 3
    max_tokens: int = 65_536
    max_seconds: float = 300.0
    resumes: bool = False


@dataclass(frozen=True, kw_only=True)
class BrokenChoice:
    """A choice whose sequence was stopped.

    Args:
        action: what the worker was told to do about such.
        num_attempts: that it has had, the broken one included.
        num_lost_tokens: that its attempts generated and the client does not get.
        seconds: since the request was accepted.
        has_sent: whether the client has a part of it.
    """

    action: Literal["retry", "fail"]
    num_attempts: int
    num_lost_tokens: int
    seconds: float
    has_sent: bool


class Limit(Enum):
    """Why there is no other attempt."""

    ACTION = "action"
    """The guard is told to fail such requests."""
    SENT = "sent"
    ATTEMPTS = "attempts"
    TOKENS = "tokens"
    SECONDS = "seconds"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt, which continues what was sent. `is_last`: it is not stopped any more."""

    is_last: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The request ends with an error."""

    limit: Limit


Decision: TypeAlias = Again | GiveUp


def decide(broken: BrokenChoice, rules: RetryRules, try_take: Callable[[], bool]) -> Decision:
    """What becomes of a broken choice.

    Args:
        broken: the choice.
        rules: how far retries go.
        try_take: takes one of the fleet's retries; returns whether there was one. Called last, and only if all else
            allows the retry.
    """
    if limit := _limit(broken, rules):
        return GiveUp(limit)
    if not try_take():
        return GiveUp(Limit.FLEET)
    return Again(is_last=broken.num_attempts + 1 >= rules.max_attempts)


def _limit(broken: BrokenChoice, rules: RetryRules) -> Limit | None:
    checks = (
        (Limit.ACTION, broken.action == "fail"),
        (Limit.SENT, broken.has_sent and not rules.resumes),
        (Limit.ATTEMPTS, broken.num_attempts >= rules.max_attempts),
        (Limit.TOKENS, broken.num_lost_tokens > rules.max_tokens),
        (Limit.SECONDS, broken.seconds > rules.max_seconds),
    )
    return next((limit for limit, is_reached in checks if is_reached), None)
