"""What the gateway knows of its workers' health, load and caches, and the choice made of it.

    connect ─▶ choose ─▶ begin ─▶ first_token ─▶ end        one ticket a sequence
                                     └───────── lose: whatever its tickets were, they are ended by the caller

Invariants:
1. Every ticket that began is ended once; then it counts for nobody's load any more.
2. A worker's health outlives its lives: it goes by name.
3. Of a pair whose answer was broken, only the worse one's breaker may open: the other is seen with others, too, and
   with them ends well.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lineclear.routing.breaker import (
    Breaker,
    BreakerRules,
    BreakerState,
    Ending,
    admits,
    advance,
    begin,
    end,
    restart,
    weight,
)
from lineclear.routing.budget import BudgetStatistics, RetryBudget
from lineclear.routing.candidates import Ask, Candidate, Choice, Instance
from lineclear.routing.choice import ChoiceRules, Turns, choose
from lineclear.routing.latency import Pace, add, is_slow
from lineclear.routing.retry_after import EndRate, add_end, retry_after_seconds
from lineclear.routing.sessions import Home, Sessions
from lineclear.routing.sketch import PrefixSketch

MAX_GONE: Final = 1024
"""Workers without a link whose health is kept; the ones that left first are forgotten."""


@dataclass(frozen=True, kw_only=True)
class RouterRules:
    """Everything that can be set."""

    choice: ChoiceRules = field(default_factory=ChoiceRules)
    breaker: BreakerRules = field(default_factory=BreakerRules)
    retry_share: float = 0.1
    retry_burst: int = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What a connected worker that owns requests has and takes; its fields are those of a `Candidate`."""

    worker_id: str
    num_sequences: int
    num_running: int
    num_free: int


@dataclass(slots=True, eq=False)
class Ticket:
    """One sequence at a pair, from `begin` to `end`."""

    worker_id: str
    worker_era: int
    prefill_id: str
    prefill_era: int
    num_worker_tokens: int
    num_prefill_tokens: int
    names: tuple[bytes, ...] = ()
    first_at: float | None = None
    is_ended: bool = False


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """A breaker came into another state."""

    worker_id: str
    before: BreakerState
    after: BreakerState
    reason: str


@dataclass(frozen=True)
class WorkerHealth:
    """What is known of a worker; `wait_seconds` until an open breaker lets probes through."""

    worker_id: str
    is_connected: bool
    state: BreakerState
    bad_share: float
    weight: float
    wait_seconds: float
    seconds_per_token: float
    num_sketched: int
    num_pending_tokens: int


@dataclass(slots=True)
class _Known:
    """One worker, whichever its role."""

    sketch: PrefixSketch
    breaker: Breaker = field(default_factory=Breaker)
    pace: Pace = field(default_factory=Pace)
    num_pending_tokens: int = 0
    is_connected: bool = True
    was_lost: bool = False


class Router:
    """All workers of a gateway by name.

    Args:
        rules: how it decides.
    """

    def __init__(self, rules: RouterRules) -> None:
        self._rules = rules
        self._known: dict[str, _Known] = {}
        self._sessions = Sessions()
        self._turns = Turns()
        self._ends = EndRate()
        self._changes: list[BreakerChange] = []
        self._budget = RetryBudget(rules.retry_share, rules.retry_burst)

    @property
    def budget(self) -> RetryBudget:
        """The retries of the fleet."""
        return self._budget

    @property
    def reads_prompts(self) -> bool:
        """Whether choices depend on what prompts begin with."""
        return self._rules.choice.policy == "cache_aware"

    def connect(self, worker_id: str, num_cache_tokens: int, now: float) -> None:
        """A worker has connected, for the first time or again, with an empty cache as far as is known."""
        known = self._known.pop(worker_id, None)
        if known is None:
            known = _Known(PrefixSketch(num_cache_tokens), Breaker(counted_at=now))
        elif known.was_lost:
            known.breaker = restart(known.breaker, now)
        self._known[worker_id] = known
        known.sketch = PrefixSketch(num_cache_tokens)
        known.is_connected, known.was_lost = True, False

    def disconnect(self, worker_id: str, now: float, *, is_lost: bool) -> None:
        """A worker's link has ended; `is_lost`: nobody had asked it to leave. Its tickets are the caller's to end."""
        known = self._known[worker_id]
        known.is_connected, known.was_lost = False, is_lost
        if is_lost:
            self._end_at(worker_id, Ending.BAD, self._advanced(worker_id, now).era, now, "lost", may_open=True)
        gone = [name for name, each in self._known.items() if not each.is_connected]
        for name in gone[:-MAX_GONE]:
            del self._known[name]

    def choose(self, ask: Ask, rooms: Iterable[Room], prefill_ids: Sequence[str], now: float) -> Choice | None:
        """The pair for a prompt; None if nobody has room. Nothing has begun yet."""
        candidates = [self._candidate(room, ask, now) for room in rooms]
        instances = [self._instance(prefill_id, ask, now) for prefill_id in prefill_ids]
        home = self._sessions.find(ask.session_key)
        return choose(ask, candidates, instances, self._rules.choice, home=home, turns=self._turns)

    def begin(self, choice: Choice, ask: Ask, now: float) -> list[Ticket]:
        """What was asked for goes to the chosen pair; a ticket for each of its sequences."""
        tickets = [self._ticket(choice, ask, now, is_first=idx == 0) for idx in range(ask.num_sequences)]
        for worker_id in filter(None, (choice.worker_id, choice.prefill_id)):
            known = self._known[worker_id]
            known.breaker = begin(known.breaker, ask.num_sequences)
            known.sketch.add(ask.names)
        self._sessions.settle(ask.session_key, Home(choice.worker_id, choice.prefill_id))
        self._turns = Turns(choice.worker_id, choice.prefill_id or self._turns.prefill_id)
        return tickets

    def first_token(self, ticket: Ticket, now: float) -> None:
        """A sequence's prompt is computed; told again, it makes no difference."""
        if ticket.first_at is None and not ticket.is_ended:
            ticket.first_at = now
            self._settle(ticket)

    def end(
        self,
        ticket: Ticket,
        ending: Ending,
        now: float,
        *,
        num_tokens: int = 0,
        reason: str = "",
        prefill_id: str = "",
        is_forgotten: bool = False,
    ) -> None:
        """A sequence has ended.

        Args:
            ticket: the sequence's.
            ending: what that says of its worker.
            now: seconds.
            num_tokens: that it generated.
            reason: for whoever reads why a breaker opened.
            prefill_id: of the instance that is known to have computed the prompt; empty: none, or it is not known.
            is_forgotten: whether its KV was dropped from all caches.
        """
        assert not ticket.is_ended, f"a ticket of {ticket.worker_id} ends twice"
        self._settle(ticket)
        ticket.is_ended = True
        if is_forgotten:
            self._forget(ticket.names, ticket.worker_id, prefill_id)
        self._ends = add_end(self._ends, now)
        if ending is Ending.GOOD and self._is_slow(ticket, now, num_tokens):
            ending, reason = Ending.BAD, "slow"
        worker, prefill = ticket.worker_id, self._suspect(ticket, ending, prefill_id)
        if not prefill:
            self._end_at(worker, ending, ticket.worker_era, now, reason, may_open=True)
            return
        era = ticket.prefill_era if prefill == ticket.prefill_id else self._advanced(prefill, now).era
        prefill_is_worse = self._known[prefill].breaker.bad_share >= self._known[worker].breaker.bad_share
        worker_is_worse = self._known[worker].breaker.bad_share >= self._known[prefill].breaker.bad_share
        self._end_at(prefill, ending, era, now, reason, may_open=prefill_is_worse)
        self._end_at(worker, ending, ticket.worker_era, now, reason, may_open=worker_is_worse)

    def retry_after_seconds(self, now: float, *, num_ahead: int) -> int:
        """When a client that found no room is to ask again."""
        return retry_after_seconds(self._ends, now, num_ahead=num_ahead)

    def take_changes(self) -> list[BreakerChange]:
        """The breakers' changes since this was asked last."""
        changes, self._changes = self._changes, []
        return changes

    def budget_statistics(self) -> BudgetStatistics:
        """The retries of the fleet."""
        return self._budget.statistics()

    def health(self, now: float) -> list[WorkerHealth]:
        """All workers by name."""
        return [self._health(worker_id, now) for worker_id in sorted(self._known)]

    def check(self) -> None:
        """Assert that nobody's load is negative, and the bounds of sketches."""
        for worker_id, known in self._known.items():
            assert known.num_pending_tokens >= 0, f"{worker_id}: {known.num_pending_tokens} pending tokens"
            known.sketch.check()

    def _candidate(self, room: Room, ask: Ask, now: float) -> Candidate:
        known = self._known[room.worker_id]
        breaker = self._advanced(room.worker_id, now)
        return Candidate(
            worker_id=room.worker_id,
            num_sequences=room.num_sequences,
            num_running=room.num_running,
            num_free=room.num_free,
            num_pending_tokens=known.num_pending_tokens,
            num_cached_tokens=known.sketch.num_cached_tokens(ask.names),
            is_admitted=admits(breaker, self._rules.breaker),
            weight=weight(breaker, now, self._rules.breaker),
        )

    def _instance(self, prefill_id: str, ask: Ask, now: float) -> Instance:
        known = self._known[prefill_id]
        breaker = self._advanced(prefill_id, now)
        return Instance(
            prefill_id=prefill_id,
            num_pending_tokens=known.num_pending_tokens,
            num_cached_tokens=known.sketch.num_cached_tokens(ask.names),
            is_admitted=admits(breaker, self._rules.breaker),
            weight=weight(breaker, now, self._rules.breaker),
        )

    def _ticket(self, choice: Choice, ask: Ask, now: float, *, is_first: bool) -> Ticket:
        """The first of several sequences counts for the prompt that all share."""
        worker = self._known[choice.worker_id]
        prefill = self._known[choice.prefill_id] if choice.prefill_id else None
        num_uncached = max(1, ask.num_prompt_tokens - worker.sketch.num_cached_tokens(ask.names))
        is_handed_off = prefill is not None and num_uncached >= self._rules.choice.min_handoff_tokens
        num_by_prefill = 0
        if is_first and is_handed_off and prefill is not None:
            num_by_prefill = max(1, num_uncached - prefill.sketch.num_cached_tokens(ask.names))
        ticket = Ticket(
            worker_id=choice.worker_id,
            worker_era=self._advanced(choice.worker_id, now).era,
            prefill_id=choice.prefill_id if is_handed_off else "",
            prefill_era=self._advanced(choice.prefill_id, now).era if is_handed_off else 0,
            num_worker_tokens=num_uncached if is_first and not is_handed_off else 0,
            num_prefill_tokens=num_by_prefill,
            names=ask.names,
        )
        worker.num_pending_tokens += ticket.num_worker_tokens
        if prefill is not None:
            prefill.num_pending_tokens += ticket.num_prefill_tokens
        return ticket

    def _settle(self, ticket: Ticket) -> None:
        """What the prompt had still to be computed is no load any more."""
        for worker_id, num_tokens in (
            (ticket.worker_id, ticket.num_worker_tokens),
            (ticket.prefill_id, ticket.num_prefill_tokens),
        ):
            if worker_id in self._known:
                self._known[worker_id].num_pending_tokens -= num_tokens
        ticket.num_worker_tokens = ticket.num_prefill_tokens = 0

    def _forget(self, names: Sequence[bytes], *worker_ids: str) -> None:
        for worker_id in worker_ids:
            if worker_id in self._known:
                self._known[worker_id].sketch.forget(names)

    def _suspect(self, ticket: Ticket, ending: Ending, prefill_id: str) -> str:
        """The instance that the ending says something of as well; empty: none."""
        known = prefill_id if ending is Ending.BAD else prefill_id or ticket.prefill_id
        return known if known in self._known else ""

    def _is_slow(self, ticket: Ticket, now: float, num_tokens: int) -> bool:
        known = self._known.get(ticket.worker_id)
        if known is None or ticket.first_at is None:
            return False
        known.pace = add(known.pace, now - ticket.first_at, num_tokens - 1)
        others = [each.pace for name, each in self._known.items() if name != ticket.worker_id and each.is_connected]
        return is_slow(known.pace, others)

    def _end_at(self, worker_id: str, ending: Ending, era: int, now: float, reason: str, *, may_open: bool) -> None:
        if worker_id not in self._known:
            return
        before = self._advanced(worker_id, now)
        after = end(before, ending, era, now, self._rules.breaker, may_open=may_open)
        self._keep(worker_id, after, reason)

    def _advanced(self, worker_id: str, now: float) -> Breaker:
        self._keep(worker_id, advance(self._known[worker_id].breaker, now), "time")
        return self._known[worker_id].breaker

    def _keep(self, worker_id: str, breaker: Breaker, reason: str) -> None:
        known = self._known[worker_id]
        if breaker.state is not known.breaker.state:
            self._changes.append(BreakerChange(worker_id, known.breaker.state, breaker.state, reason))
            if breaker.state is BreakerState.CLOSED:
                known.pace = Pace()
        known.breaker = breaker

    def _health(self, worker_id: str, now: float) -> WorkerHealth:
        known = self._known[worker_id]
        breaker = self._advanced(worker_id, now)
        is_open = breaker.state is BreakerState.OPEN
        return WorkerHealth(
            worker_id=worker_id,
            is_connected=known.is_connected,
            state=breaker.state,
            bad_share=breaker.bad_share,
            weight=weight(breaker, now, self._rules.breaker),
            wait_seconds=max(0.0, breaker.opened_at + breaker.open_seconds - now) if is_open else 0.0,
            seconds_per_token=known.pace.seconds_per_token,
            num_sketched=len(known.sketch),
            num_pending_tokens=known.num_pending_tokens,
        )
