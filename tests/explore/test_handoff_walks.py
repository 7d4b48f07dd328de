"""Random walks through a world that is too large to explore."""

import re
from pathlib import Path

import pytest

from lineclear.testing.handoff import receiver_mutants, sender_mutants
from lineclear.testing.handoff.catalogue import LARGE
from lineclear.testing.handoff.model import HandoffModel
from lineclear.testing.handoff.shells import Machines
from lineclear.testing.rest import Rest
from lineclear.testing.walk import walk
from tests.explore.test_handoff import NUM_STATES

MAX_MOVES = 200
NUM_WALKS = 60


def test_nothing_is_wrong_on_any_walk() -> None:
    num_moves = 0
    for seed in range(NUM_WALKS):
        model = HandoffModel(LARGE)
        broken, script = walk(model, seed, max_moves=MAX_MOVES, liveness=Rest(model.at_rest(), model.start()))
        assert broken is None, (seed, script)
        num_moves += len(script)
    assert num_moves > NUM_WALKS * 20


@pytest.mark.parametrize(
    "machines",
    [
        Machines(receiver_step=receiver_mutants.takes_failure_for_proof),
        Machines(sender_step=sender_mutants.cancels_by_wishing),
    ],
    ids=lambda machines: str(machines.receiver_step.__name__ + " " + machines.sender_step.__name__),
)
def test_walks_find_what_is_wrong(machines: Machines) -> None:
    model = HandoffModel(LARGE, machines=machines)
    found = (walk(model, seed, max_moves=MAX_MOVES)[0] for seed in range(NUM_WALKS))
    assert any(broken is not None and broken.startswith(("P1", "S1")) for broken in found)


def test_a_walk_is_the_same_each_time() -> None:
    assert walk(HandoffModel(LARGE), 3, max_moves=50) == walk(HandoffModel(LARGE), 3, max_moves=50)


def test_the_document_has_the_counts() -> None:
    text = (Path(__file__).parents[2] / "docs" / "handoff.md").read_text(encoding="utf-8")
    text = text[: text.index("| full form, besides those |")]
    rows = re.findall(r"^\| (\d rank[^|]*?) +\| ([\d,]+) +\|", text, flags=re.MULTILINE)
    assert {name: int(count.replace(",", "")) for name, count in rows} == NUM_STATES
    assert f"{sum(NUM_STATES.values()):,}" in text
