"""What a verdict is about is given up by the prefill instance that computed it, also if the link is away just then."""

from array import array
from pathlib import Path

import pytest

from lineclear.guard.evidence import Finding, Verify
from lineclear.guard.guard import Guard
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence, SequenceState
from tests.property.handoff_world import HandoffWorld, until, world_with_a_write_in_flight

PROMPT = [1] * 12


class Broken:
    """Finds a collapse at once."""

    level = 1.0

    def judge(self, verify: Verify, tokens: "array[int]", num_prompt_tokens: int) -> Finding | None:
        del verify, tokens, num_prompt_tokens
        return Finding("collapse", {})


def world_after_a_handoff(folder: Path) -> HandoffWorld:
    """Decode has a prompt's KV in its tree, and so has the prefill instance that wrote it."""
    world = world_with_a_write_in_flight(folder)

    def is_over() -> bool:
        for writer, ticket in world.prefill.flying():
            writer.land(ticket)
        return world.decode.sequences[0].state is SequenceState.FINISHED and world.prefill.is_settled

    until(world, is_over)
    assert num_known(world) == 2
    world.decode.scheduler._guard = Guard("retry", None)
    return world


def num_known(world: HandoffWorld) -> int:
    """Blocks of the prompt that its writer would find."""
    tree = world.prefill.engine.tree
    return tree.match(array("I", PROMPT), 0).num_blocks


def submit(world: HandoffWorld, *, is_broken: bool) -> Sequence:
    sequence = world.submit(PROMPT, SamplingParams(max_tokens=2, ignore_eos=True))
    if is_broken:
        sequence.detector = Broken()
    return sequence


@pytest.mark.parametrize("is_broken", [True, False])
def test_what_decode_found_in_its_own_tree_is_given_up_where_it_was_computed(
    tmp_path: Path, *, is_broken: bool
) -> None:
    world = world_after_a_handoff(tmp_path)
    sequence = submit(world, is_broken=is_broken)
    until(world, lambda: sequence.state is SequenceState.FINISHED)
    assert sequence.num_cached_tokens == 8
    assert sequence.prefill_id == ""
    for _ in range(5):
        world.turn_prefill()
    assert num_known(world) == (0 if is_broken else 2)
    world.close()


@pytest.mark.parametrize("is_noticed", [True, False])
def test_an_instance_whose_link_breaks_is_told_when_it_is_back(tmp_path: Path, *, is_noticed: bool) -> None:
    world = world_after_a_handoff(tmp_path)
    world.cut_link()
    if is_noticed:
        world.turn_decode()
    assert world.decode_desk.statistics().num_peers == (not is_noticed)
    sequence = submit(world, is_broken=True)
    while sequence.state is not SequenceState.FINISHED:
        world.turn_decode()
    assert num_known(world) == 2
    until(world, lambda: num_known(world) == 0)
    assert world.decode_desk.statistics().num_peers == 1
    world.close()
