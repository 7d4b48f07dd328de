"""Negative controls: one guard is taken out, and the explorer must find what goes wrong, with the shortest script.

Physics are weak there: P1 and S1 count only when another handoff really has the block, so scripts show corruption
and no mere missing hold. Nothing is reduced.

`GUARDS` has one or more for every rule that is about safety or liveness. `FAILURE_CLASSES` are the seven published
ways in which an engine loses or corrupts handoffs. `CLAIMS` show limits that the rules name. `HARMLESS` are changes
after which nothing must be found: they show that a second guard holds, or that only the guard taken out is to blame.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from lineclear.testing.explorer import Exploration, explore
from lineclear.testing.handoff import receiver_mutants as rm
from lineclear.testing.handoff import sender_mutants as sm
from lineclear.testing.handoff.model import HandoffModel
from lineclear.testing.handoff.scenario import Budget, NetworkKind, Physics, Scenario
from lineclear.testing.handoff.shells import Machines
from lineclear.testing.rest import Rest

_CRASH = Budget(rank_crashes=1)
_DECODE_CRASH = Budget(decode_crashes=1)
_UNKNOWN = Budget(unknowns=1)
_ERROR = Budget(errors=1)
_FAILURE = Budget(failures=1)

_TWO = Scenario("1 rank, 2 requests, 1 block")
_ONE = Scenario("1 rank, 1 request", num_requests=1)
_TWO_BLOCKS = Scenario("1 rank, 2 requests, 2 blocks, 1 source", num_blocks=2)
_APART = replace(_TWO_BLOCKS, name="1 rank, 2 requests, 2 blocks, 2 sources", num_sources=2)
_TWO_WRITES = Scenario("1 rank, 2 requests, 1 block, 2 writes", num_tokens=2)
_RANKS = Scenario("2 ranks, 2 requests, 1 block", num_ranks=2)
_RETRY = replace(_APART, name="1 rank, 2 requests, 2 blocks, 2 sources, retry", num_attempts=2)

_WEAK = Physics(strict=False)
_PRODUCTION = Machines()


@dataclass(frozen=True)
class Control:
    """One guard taken out."""

    name: str
    expected: tuple[str, ...]
    """How the promise that breaks begins; empty: nothing must be found."""
    scenario: Scenario
    machines: Machines = _PRODUCTION
    physics: Physics = _WEAK

    def run(self, on_progress: Callable[[int], None] | None = None) -> Exploration:
        """Explore until something is found."""
        model = HandoffModel(self.scenario, self.physics, self.machines)
        is_about_safety = bool(self.expected) and not self.expected[0].startswith("in the end")
        liveness = None if is_about_safety else Rest(model.at_rest(), model.start())
        return explore(model, liveness=liveness, on_progress=on_progress)

    def is_satisfied_by(self, found: Exploration) -> bool:
        """Whether the explorer found what it must find, or nothing where there is nothing."""
        if found.broken is None:
            return not self.expected and found.is_complete
        return found.broken.startswith(self.expected) if self.expected else False


def _guard(
    name: str,
    expected: str | tuple[str, ...],
    scenario: Scenario,
    machines: Machines = _PRODUCTION,
    **physics: bool,
) -> Control:
    promises = (expected,) if isinstance(expected, str) else expected
    return Control(name, promises, scenario, machines, replace(_WEAK, **physics))


def _harmless(name: str, scenario: Scenario, machines: Machines = _PRODUCTION, **physics: bool) -> Control:
    return Control(name, (), scenario, machines, replace(_WEAK, **physics))


_NEVER_ENDS = "in the end, P4"
_STAYS_HELD = "in the end, P5"

GUARDS = (
    _guard("R1 close before looking", "P1", _TWO, Machines(sender_step=sm.looks_before_closing)),
    _guard(
        "R1 count before posting",
        "P1",
        _TWO,
        Machines(sender_step=sm.counts_when_posted, on_post=sm.count_posted),
    ),
    _guard("R2 an error is an end only if proven", "P1", replace(_TWO, budget=_ERROR), error_means_ended=False),
    _guard("R3 wait for what is flying", "P1", _TWO, Machines(sender_step=sm.cancels_by_wishing)),
    _guard(
        "R3 unknown withholds", "P1", replace(_TWO, budget=_UNKNOWN), Machines(sender_step=sm.takes_unknown_for_ended)
    ),
    _guard("R3 a bad write closes", "P2", replace(_ONE, budget=_ERROR), Machines(sender_step=sm.forgives_bad_writes)),
    _guard("R3 done when nothing is left", "P2", _TWO_WRITES, Machines(sender_step=sm.is_done_too_soon)),
    _guard("R3 source held until writes end", "S1", _TWO_BLOCKS, Machines(sender_step=sm.frees_source_at_close)),
    _guard(
        "R3 source held while unknown",
        "S1",
        replace(_TWO_BLOCKS, budget=_UNKNOWN),
        Machines(sender_step=sm.frees_source_of_unknown),
    ),
    _guard("R4 an early abort leaves a trace", "P1", _TWO, Machines(sender_step=sm.forgets_early_aborts)),
    _guard("R4 every epoch leaves a trace", "P1", _TWO, Machines(sender_step=sm.forgets_obeyed_orders)),
    _guard(
        "R5 orders name the rank's life",
        "P1",
        replace(_TWO, budget=_CRASH),
        Machines(sender_step=sm.obeys_orders_to_another_life),
    ),
    _guard(
        "R5 answers name the rank's life",
        "P1",
        replace(_TWO, budget=_CRASH),
        Machines(receiver_step=rm.believes_another_life, sender_step=sm.answers_for_another_life),
    ),
    _guard("R5 sender state by epoch", "P1", _RETRY, Machines(sender_step=sm.keeps_one_record)),
    _guard(
        "R5 answers name the epoch",
        "P2",
        replace(_ONE, name="1 rank, 1 request, retry", num_attempts=2),
        Machines(receiver_step=rm.believes_another_attempt),
    ),
    _guard("R5 epochs name the decode life", ("P1", "P2"), replace(_TWO, budget=_DECODE_CRASH), fresh_life=False),
    _guard("R6 proofs kept by rank", "P1", _RANKS, Machines(receiver_step=rm.counts_answers)),
    _guard(
        "R6 ready when every rank is done",
        "P2",
        replace(_RANKS, name="2 ranks, 1 request", num_requests=1),
        Machines(receiver_step=rm.is_ready_at_first_done),
    ),
    _guard("R6 never without a holder", "P5", _ONE, Machines(receiver_step=rm.releases_before_ready)),
    _guard("R7 writer's hold outlives the request", "P1", _TWO, hold_outlives_request=False),
    _guard("R7 writer's hold outlives timers", "P1", _TWO, hold_outlives_timer=False),
    _guard("R7 deadline for a block", _NEVER_ENDS, replace(_TWO, budget=_CRASH, stops=False)),
    _guard(
        "R8 failure is news, no proof",
        "P1",
        replace(_TWO, budget=_FAILURE),
        Machines(receiver_step=rm.takes_failure_for_proof),
    ),
    _guard(
        "R8 loss of a rank is news, no proof",
        "P1",
        replace(_TWO, budget=_CRASH),
        Machines(receiver_step=rm.takes_loss_for_proof),
    ),
    _guard(
        "R8 news closes",
        _NEVER_ENDS,
        replace(_ONE, budget=_UNKNOWN, stops=False),
        Machines(receiver_step=rm.ignores_news),
    ),
    _guard("R8 one outcome", "P4", replace(_ONE, budget=_FAILURE), Machines(receiver_step=rm.fails_twice)),
    _guard("R9 a fence stops what is posted", "P1", replace(_TWO, budget=_CRASH), fence_stops_writes=False),
    _guard("R9 a fence is for good", "P1", replace(_TWO, live_fences=True), fence_is_for_good=False),
    _guard(
        "R9 a fence ends the hold",
        "P5",
        replace(_TWO, budget=_CRASH),
        Machines(receiver_step=rm.keeps_holds_of_fenced),
    ),
    _guard("R10 new memory for a new decode life", "P1", replace(_TWO, budget=_DECODE_CRASH), fresh_memory=False),
    _guard(
        "R10 the gateway ends orphans", _NEVER_ENDS, replace(_ONE, budget=_DECODE_CRASH), gateway_ends_orphans=False
    ),
    _guard("R11 the order asked again", _NEVER_ENDS, replace(_ONE, stops=False), Machines(rm.orders_once)),
    _guard("R11 the abort asked again", _STAYS_HELD, _ONE, Machines(rm.aborts_once)),
    _guard("R11 answered again", _STAYS_HELD, _ONE, Machines(sender_step=sm.answers_once)),
)

_EXACT = replace(_ONE, name="1 rank, 1 request, exact network", network=NetworkKind.EXACT)
_EXACT_APART = replace(_APART, name=f"{_APART.name}, exact network", network=NetworkKind.EXACT)

FAILURE_CLASSES = (
    _guard("1 ack target dropped before the drain", _STAYS_HELD, _EXACT, Machines(rm.aborts_once, sm.drains_silently)),
    _guard(
        "2 one ack target, overwritten by a second",
        _STAYS_HELD,
        _EXACT_APART,
        Machines(rm.aborts_once, sm.answers_one_target, sm.OneTargetSender),
    ),
    _guard(
        "3 abort of a cleared transfer never answered",
        _STAYS_HELD,
        replace(_EXACT, budget=_FAILURE),
        Machines(rm.aborts_once, sm.ignores_aborts_of_cleared, sm.ClearingSender),
    ),
    _guard(
        "4 failure noticed by prefill releases at once",
        "P1",
        replace(_TWO, budget=_FAILURE),
        Machines(receiver_step=rm.takes_failure_for_proof),
    ),
    _guard("5 source blocks not held", "S1", _TWO_BLOCKS, Machines(sender_step=sm.frees_source_at_close)),
    _guard("6 release by timeout", "P1", _TWO, hold_outlives_timer=False),
    _guard(
        "7 unknown outcome answered as clear",
        "P1",
        replace(_TWO_WRITES, budget=_UNKNOWN),
        Machines(sender_step=sm.skips_poisoned_chunks),
    ),
)

HARMLESS = (
    _harmless(
        "class 1, asked again",
        replace(_TWO, budget=Budget(errors=1, failures=1)),
        Machines(sender_step=sm.drains_silently),
    ),
    _harmless(
        "class 2, asked again", _APART, Machines(sender_step=sm.answers_one_target, new_sender=sm.OneTargetSender)
    ),
    _harmless(
        "class 3, asked again",
        replace(_TWO, budget=_FAILURE),
        Machines(sender_step=sm.ignores_aborts_of_cleared, new_sender=sm.ClearingSender),
    ),
    _harmless(
        "classes 1 to 3 but for the sender: asked once, exact network",
        replace(_EXACT_APART, budget=_FAILURE),
        Machines(rm.aborts_once),
    ),
    _harmless("R5 only the rank checks lives", replace(_TWO, budget=_CRASH), Machines(rm.believes_another_life)),
    _harmless(
        "R5 only the receiver checks lives",
        replace(_TWO, budget=_CRASH),
        Machines(sender_step=sm.answers_for_another_life),
    ),
    _harmless("R9 fence of a living rank, for good", replace(_TWO, live_fences=True, budget=_UNKNOWN)),
    _harmless("R12 ranks not told of decode's end", replace(_APART, budget=_DECODE_CRASH), decode_death_is_told=False),
    _harmless(
        "R4 orders in epoch order: none refused in vain",
        replace(_APART, network=NetworkKind.IN_ORDER, forgets=False),
        refusals_are_earned=True,
    ),
)

CLAIMS = (
    _guard("R4 an order out of turn is refused", "an order", _APART, refusals_are_earned=True),
    _guard(
        "R9 unknown holds blocks behind a living rank",
        _STAYS_HELD,
        replace(_ONE, budget=_UNKNOWN),
        unknown_is_excused=False,
    ),
)

MUST_BE_FOUND = (*GUARDS, *FAILURE_CLASSES, *CLAIMS)
