"""The checks of the contract find a mover that breaks it: one wrong mover for each promise."""

import pytest

from tests.contract import mover_checks as checks
from tests.contract.mover_checks import Check
from tests.contract.mover_world import World
from tests.contract.test_movers import nixl_world

LANDED_LATE = "the memory changed|bytes landed after the fence|bytes are wrong|a post after the fence is DONE"


@pytest.mark.parametrize(
    ("kind", "check", "fault"),
    [
        ("fenced when stopped", checks.check_stopped_writer, LANDED_LATE),
        ("fenced in time", checks.check_stopped_writer, LANDED_LATE),
        ("fenced at a closed link", checks.check_stopped_writer, LANDED_LATE),
        ("fenced at a closed link", checks.check_fence_of_the_living, LANDED_LATE),
        ("never fenced", checks.check_source_killed, "the fence of a killed writer is not true"),
        ("fenced by deregistering", checks.check_stopped_writer, LANDED_LATE),
        ("fenced by deregistering", checks.check_fence_of_the_living, LANDED_LATE),
        ("done early", checks.check_done_is_visible, "DONE came before the bytes"),
        ("writes one more", checks.check_random_spans, "bytes are wrong"),
        ("writes what fits", checks.check_spans_outside, "bytes are wrong"),
        ("answers twice", checks.check_answers, "a post is answered once"),
        ("keeps failures to itself", checks.check_answers, "are not proven"),
        ("says failed when it closes", checks.check_close_in_flight, "the memory changed"),
        ("always readable", checks.check_readable, "and everything was polled"),
        ("spins", checks.check_idle, "of CPU"),
        ("keeps its thread", checks.check_no_leaks, "descriptors, threads, mappings"),
        ("keeps what it forgets", checks.check_forget, "what was forgotten is still held"),
    ],
)
def test_a_wrong_mover_is_caught(kind: str, check: Check, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.contract.mover_world.PATIENCE_SHARE", 0.2)
    if kind == "fenced by deregistering":
        nixl_world()
    num_posts = 60 if kind == "fenced by deregistering" else 300
    world = World(kind, fences_the_living=kind.startswith("fenced"), num_flood_posts=num_posts)
    try:
        with pytest.raises(AssertionError, match=fault):
            check(world)
    finally:
        world.close()
