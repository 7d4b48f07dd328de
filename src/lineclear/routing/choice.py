"""Chooses a worker pair. Pure functions: the same arguments, the same choice.

    candidates with room ─▶ those not to be avoided, whose breaker admits ─▶ policy ─▶ worker
      and if there are none: admitted ones, though they were to be avoided; then any with room

| policy | worker | prefill instance |
|---|---|---|
| `cache_aware` | the session's, unless it is loaded far above others; else that of the cheapest pair | of that pair |
| `least_load` | that with the least part of its room taken | that with least to compute |
| `round_robin` | the next one by name | the next one by name |

Invariants:
1. If any candidate has room, one is chosen, whatever breakers say: a fleet of which nobody is trusted still serves, and
   its answers are judged like all others.
2. A candidate that is not admitted, or is to be avoided, is chosen only where no other has room.
3. `cache_aware` keeps a session's worker while its load is within the bound, and leaves it for one that is.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypeVar

from lineclear.routing.candidates import Ask, Candidate, Choice, Instance, Why
from lineclear.routing.cost import prefill_cost, worker_cost
from lineclear.routing.sessions import Home

Policy: TypeAlias = Literal["cache_aware", "least_load", "round_robin"]

PAIRED_WORKERS: Final = 8
"""Workers, the cheapest by themselves, that are compared in pairs with every prefill instance."""

SLACK_LOAD: Final = 0.25
"""Load that a session's worker may have however idle the others are: a quarter of what it runs at once."""

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ChoiceRules:
    """How choices are made.

    Args:
        policy: as in the table above.
        max_imbalance: how many times the mean load a session's worker may have and still be kept.
        min_handoff_tokens: prompt tokens not cached from which on prefill instances compute them.
    """

    policy: Policy = "cache_aware"
    max_imbalance: float = 1.5
    min_handoff_tokens: int = 256


@dataclass(frozen=True, slots=True)
class Turns:
    """Whose turn was last, by name; empty: nobody's."""

    worker_id: str = ""
    prefill_id: str = ""


def choose(
    ask: Ask,
    candidates: Sequence[Candidate],
    instances: Sequence[Instance],
    rules: ChoiceRules,
    *,
    home: Home | None = None,
    turns: Turns = Turns(),
) -> Choice | None:
    """The pair for a prompt; None if no candidate has room.

    Args:
        ask: what is to be placed.
        candidates: the workers, by age: among equals the first is taken.
        instances: the prefill instances, the same.
        rules: how to choose.
        home: where the session was served last.
        turns: whose turn was last.
    """
    with_room = [each for each in candidates if each.num_free >= ask.num_sequences]
    if not with_room:
        return None
    eligible = [each for each in with_room if each.is_admitted and each.worker_id not in ask.avoid_workers]
    is_forced = not eligible
    eligible = eligible or [each for each in with_room if each.is_admitted] or with_room
    usable = [each for each in instances if each.is_admitted and each.prefill_id not in ask.avoid_prefill]
    avoided = tuple(sorted({each.prefill_id for each in instances} - {each.prefill_id for each in usable}))
    usable = usable or [each for each in instances if each.prefill_id not in ask.avoid_prefill] or list(instances)
    choice = _by_policy(ask, eligible, usable, rules, home, turns)
    return replace(choice, avoid_prefill=avoided, why=Why.FORCED if is_forced else choice.why)


def load_bound(ask: Ask, eligible: Sequence[Candidate], max_imbalance: float) -> float:
    """The load up to which a session's worker is kept; at least one eligible worker is within it."""
    mean = sum(each.load_with(ask.num_sequences) for each in eligible) / len(eligible)
    return max(SLACK_LOAD, max_imbalance * mean)


def _by_policy(
    ask: Ask,
    eligible: Sequence[Candidate],
    usable: Sequence[Instance],
    rules: ChoiceRules,
    home: Home | None,
    turns: Turns,
) -> Choice:
    match rules.policy:
        case "cache_aware":
            return _cache_aware(ask, eligible, usable, rules, home)
        case "least_load":
            worker = min(eligible, key=lambda each: (each.num_sequences / _room(each)) / each.weight)
            instance = min(usable, key=lambda each: each.num_pending_tokens / each.weight, default=None)
            return Choice(worker.worker_id, instance.prefill_id if instance else "", (), Why.LOAD)
        case "round_robin":
            worker = _next(eligible, turns.worker_id, lambda each: each.worker_id)
            instance = _next(usable, turns.prefill_id, lambda each: each.prefill_id) if usable else None
            return Choice(worker.worker_id, instance.prefill_id if instance else "", (), Why.TURN)


def _cache_aware(
    ask: Ask, eligible: Sequence[Candidate], usable: Sequence[Instance], rules: ChoiceRules, home: Home | None
) -> Choice:
    bound = load_bound(ask, eligible, rules.max_imbalance)
    within = [each for each in eligible if each.load_with(ask.num_sequences) <= bound] or list(eligible)
    at_home = next((each for each in within if home is not None and each.worker_id == home.worker_id), None)
    if at_home is not None:
        _, instance = _cheapest_instance(ask, at_home, usable, rules, home)
        return Choice(at_home.worker_id, instance, (), Why.SESSION)
    cost_of = _worker_costs(ask, usable, rules)
    pairs: list[tuple[float, float, Candidate, str]] = []
    for each in heapq.nsmallest(PAIRED_WORKERS, within, key=lambda each: (cost_of(each), each.load)):
        of_prefill, instance = _cheapest_instance(ask, each, usable, rules, home)
        pairs.append((cost_of(each) + of_prefill, each.load, each, instance))
    _, _, worker, instance = min(pairs, key=lambda pair: pair[:2])
    least_cached = min(each.num_cached_tokens for each in within)
    why = Why.PREFIX if worker.num_cached_tokens > least_cached else Why.LOAD
    return Choice(worker.worker_id, instance, (), why)


def _worker_costs(ask: Ask, usable: Sequence[Instance], rules: ChoiceRules) -> Callable[[Candidate], float]:
    def cost(candidate: Candidate) -> float:
        return worker_cost(ask, candidate, has_instances=bool(usable), min_handoff_tokens=rules.min_handoff_tokens)

    return cost


def _cheapest_instance(
    ask: Ask, worker: Candidate, usable: Sequence[Instance], rules: ChoiceRules, home: Home | None
) -> tuple[float, str]:
    """The instance that costs least with this worker, the session's own among equals, and what it costs."""
    if not usable:
        return 0.0, ""

    def key(instance: Instance) -> tuple[float, bool]:
        cost = prefill_cost(ask, worker, instance, min_handoff_tokens=rules.min_handoff_tokens)
        return cost, home is None or instance.prefill_id != home.prefill_id

    best = min(usable, key=key)
    return key(best)[0], best.prefill_id


def _room(candidate: Candidate) -> int:
    return candidate.num_sequences + candidate.num_free


def _next(candidates: Sequence[_T], last: str, name_of: Callable[[_T], str]) -> _T:
    """The first by name after the last one, or the first of all."""
    ordered = sorted(candidates, key=name_of)
    return next((each for each in ordered if name_of(each) > last), ordered[0])
