from collections import deque

from lineclear.testing.handoff import words
from lineclear.testing.handoff.catalogue import FULL
from lineclear.testing.handoff.model import HandoffModel
from lineclear.testing.handoff.scenario import ONE_OF_EACH, Physics, Scenario
from lineclear.testing.handoff.words import say, say_script


def test_every_move_has_a_sentence_and_every_sentence_a_move() -> None:
    scenario = Scenario(
        "all", num_requests=2, num_attempts=2, live_fences=True, budget=ONE_OF_EACH._replace(rank_crashes=2)
    )
    model = HandoffModel(scenario, Physics(strict=False, hold_outlives_timer=False))
    seen: set[str] = set()
    known = {model.start()}
    queue = deque(known)
    while queue and seen != set(words._SENTENCES) and len(known) < 20_000:
        for move in model.moves(world := queue.popleft()):
            seen.add(move.label[0])
            assert "{" not in say(move.label)
            after = model.normal(move.after())
            if after not in known and after is not world:
                known.add(after)
                queue.append(after)
    assert seen == set(words._SENTENCES)


def test_a_script_ends_with_the_broken_promise() -> None:
    assert say_script([("admit", 1), ("decode crashes",)], "P1: so") == [
        " 1. decode takes blocks for B and orders its prefill",
        " 2. decode crashes, its next life begins",
        " ✗  P1: so",
    ]
    assert say_script([], None) == []


def test_scenarios_have_names_of_their_own() -> None:
    assert len({scenario.name for scenario in FULL}) == len(FULL)
