"""Liveness by the book, on small worlds: backward from the good ends, which worlds have a way to one?

The explorer itself walks forward, one way for each world, which is cheaper (`lineclear.testing.rest`). Both must agree.
"""

import pytest

from lineclear.testing.explorer import MoveKind, explore
from lineclear.testing.handoff import receiver_mutants, sender_mutants
from lineclear.testing.handoff.model import HandoffModel
from lineclear.testing.handoff.scenario import ONE_OF_EACH, Budget, Scenario
from lineclear.testing.handoff.shells import Machines
from lineclear.testing.handoff.world import World
from lineclear.testing.rest import Rest

RELIED_ON = (MoveKind.FAIR, MoveKind.TIMEOUT, MoveKind.PROOF)
ONE = Scenario("one request", num_requests=1, budget=ONE_OF_EACH)


@pytest.mark.parametrize(
    "scenario",
    [ONE, Scenario("two requests", budget=Budget(rank_crashes=1)), Scenario("two ranks", num_ranks=2, num_requests=1)],
    ids=lambda scenario: scenario.name,
)
def test_every_world_has_a_way_to_a_good_end(scenario: Scenario) -> None:
    assert not worlds_without_a_good_end(HandoffModel(scenario))


@pytest.mark.parametrize(
    "machines",
    [
        Machines(),
        Machines(receiver_step=receiver_mutants.aborts_once),
        Machines(sender_step=sender_mutants.answers_once),
        Machines(sender_step=sender_mutants.drains_silently),
    ],
    ids=["production", "aborts once", "answers once", "drains silently"],
)
def test_both_ways_agree(machines: Machines) -> None:
    model = HandoffModel(Scenario("one request", num_requests=1), machines=machines)
    found = explore(model, liveness=Rest(model.at_rest(), model.start()))
    assert (found.broken is None) == (not worlds_without_a_good_end(model))


def worlds_without_a_good_end(model: HandoffModel) -> set[World]:
    """Worlds, each with all its messages lost, from which no good end is reached without faults."""
    resting = model.at_rest()
    before: dict[World, set[World]] = {resting.lose_messages(world): set() for world in _reachable(model)}
    queue = list(before)
    while queue:
        world = queue.pop()
        nexts = {move.after() for move in model.moves(world) if move.kind in RELIED_ON} | {resting.ask_again(world)}
        for after in nexts - {world}:
            if after not in before:
                before[after] = set()
                queue.append(after)
            before[after].add(world)
    good = [world for world in before if resting.leftovers(world, everything=True) is None]
    assert good
    saved = set(good)
    while good:
        new = before[good.pop()] - saved
        saved |= new
        good += new
    return set(before) - saved


def _reachable(model: HandoffModel) -> set[World]:
    known = {model.start()}
    queue = list(known)
    while queue:
        new = {move.after() for move in model.moves(queue.pop())} - known
        known |= new
        queue += new
    return known
