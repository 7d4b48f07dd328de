"""Every interleaving of the production machines, and every guard taken out in turn.

The counts are part of what is reviewed: a change of the machines or of the world changes some of them.
"""

import re

import pytest

from lineclear.testing.explorer import explore
from lineclear.testing.handoff.catalogue import BOUNDED
from lineclear.testing.handoff.controls import FAILURE_CLASSES, GUARDS, HARMLESS, MUST_BE_FOUND, Control
from lineclear.testing.handoff.model import HandoffModel
from lineclear.testing.handoff.reduction import ALL_ALIKE, NOTHING_ALIKE, Likeness, Reduction
from lineclear.testing.handoff.scenario import ONE_OF_EACH, Budget, Scenario
from lineclear.testing.handoff.world import World
from lineclear.testing.rest import Rest

NUM_STATES = {
    "1 rank, 1 request": 35,
    "1 rank, 1 request, 2 writes, all faults": 3_314,
    "1 rank, 2 requests, 1 block": 166,
    "1 rank, 2 requests, 1 block, all faults": 8_525,
    "1 rank, 2 requests, 1 block, 2 crashes a side": 8_990,
    "1 rank, 2 requests, 1 block, live fence, unknown": 532,
    "1 rank, 3 requests, 1 block, crash, unknown": 2_419,
    "1 rank, 2 requests, 2 blocks, 1 source, crash, unknown": 5_212,
    "1 rank, 2 requests, 2 blocks, 2 sources, failures": 8_630,
    "1 rank, 2 requests of 2 blocks, 3 blocks": 1_176,
    "2 ranks, 1 request, all faults": 46_122,
    "2 ranks, 2 requests, 1 block": 8_698,
    "2 ranks, 2 requests, 1 block, rank crash": 34_136,
}


@pytest.mark.parametrize("scenario", BOUNDED, ids=lambda scenario: scenario.name)
def test_nothing_is_wrong_in_any_interleaving(scenario: Scenario) -> None:
    model = HandoffModel(scenario, likeness=ALL_ALIKE)
    found = explore(model, liveness=Rest(model.at_rest(), model.start()))
    assert found.broken is None, found.script
    assert found.is_complete
    assert found.num_states == NUM_STATES[scenario.name]


def test_more_than_a_hundred_thousand_states_are_explored() -> None:
    assert sum(NUM_STATES.values()) >= 100_000
    assert set(NUM_STATES) == {scenario.name for scenario in BOUNDED}


@pytest.mark.parametrize("control", MUST_BE_FOUND, ids=lambda control: control.name)
def test_a_guard_taken_out_is_found(control: Control) -> None:
    found = control.run()
    assert control.is_satisfied_by(found), (found.broken, found.script)
    assert len(found.script) <= 11


@pytest.mark.parametrize("control", HARMLESS, ids=lambda control: control.name)
def test_a_harmless_change_is_harmless(control: Control) -> None:
    found = control.run()
    assert control.is_satisfied_by(found), (found.broken, found.script)


@pytest.mark.parametrize("control", MUST_BE_FOUND, ids=lambda control: control.name)
def test_only_the_guard_taken_out_is_to_blame(control: Control) -> None:
    """With the production machines and true physics, nothing breaks in the control's own world."""
    model = HandoffModel(control.scenario)
    assert explore(model, max_states=2_000).broken is None


def test_every_rule_has_a_control_and_every_failure_class_too() -> None:
    rules = {int(re.findall(r"\d+", control.name)[0]) for control in GUARDS}
    assert rules == set(range(1, 12))
    assert [control.name[0] for control in FAILURE_CLASSES] == list("1234567")


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario("faults", num_requests=1, num_tokens=2, budget=ONE_OF_EACH),
        Scenario("two requests", budget=Budget(rank_crashes=1)),
        Scenario("retry", num_requests=1, num_attempts=2, budget=Budget(failures=1)),
        Scenario("two ranks", num_ranks=2, num_requests=1, budget=Budget(unknowns=1)),
    ],
    ids=lambda scenario: scenario.name,
)
def test_dead_messages_are_dead_and_no_world_comes_again(scenario: Scenario) -> None:
    """What the verdicts rest on, in worlds that are not reduced.

    A message called dead changes nothing that is kept, and stays dead. No move leads back: all schedules come to rest.
    """
    model = HandoffModel(scenario, likeness=NOTHING_ALIKE)
    reduction = Reduction(model.network, Likeness(dead_messages=True))
    edges: dict[World, set[World]] = {}
    queue = [model.start()]
    while queue:
        world = queue.pop()
        if world in edges:
            continue
        dead = reduction.dead_messages(world)
        edges[world] = set()
        for move in model.moves(world):
            after = move.after()
            if move.label[0] == "arrive" and model.network.bit_of(move.label[1]) & dead:
                assert reduction(after) == reduction(world)
            assert not dead & ~reduction.dead_messages(after)
            if after != world:
                edges[world].add(after)
                queue.append(after)
    assert _is_acyclic(edges)


def _is_acyclic(edges: dict[World, set[World]]) -> bool:
    num_incoming = dict.fromkeys(edges, 0)
    for targets in edges.values():
        for target in targets:
            num_incoming[target] += 1
    ready = [world for world, count in num_incoming.items() if count == 0]
    num_seen = 0
    while ready:
        num_seen += 1
        for target in edges[ready.pop()]:
            num_incoming[target] -= 1
            if num_incoming[target] == 0:
                ready.append(target)
    return num_seen == len(edges)
