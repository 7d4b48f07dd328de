"""Questions are repeated to those that may have forgotten them, not to those that do not read."""

from pathlib import Path

from lineclear.protocol.handoff.messages import PrefillOrder
from lineclear.protocol.sampling import SamplingParams
from lineclear.transport.peer_links import PeerSaid
from tests.property.handoff_world import HandoffWorld, until, world_with_a_write_in_flight


def _orders_that_arrive(world: HandoffWorld) -> int:
    events = world.prefill.ranks[0].links.poll()
    return sum(isinstance(event, PeerSaid) and isinstance(event.message, PrefillOrder) for event in events)


def test_a_peer_that_stands_still_finds_each_question_once(tmp_path: Path) -> None:
    world = world_with_a_write_in_flight(tmp_path)
    world.submit([2] * 12, SamplingParams(max_tokens=2, ignore_eos=True))
    for _ in range(90):
        world.time += 1.0
        world.turn_decode()
    assert _orders_that_arrive(world) == 1
    world.close()


def test_a_peer_that_is_heard_of_is_asked_again(tmp_path: Path) -> None:
    world = world_with_a_write_in_flight(tmp_path)
    world.submit([2] * 12, SamplingParams(max_tokens=2, ignore_eos=True))
    until(world, lambda: world.decode_desk.statistics().num_open == 2, prefill=False)
    assert _orders_that_arrive(world) == 1
    world.time += 61.0
    assert _orders_that_arrive(world) == 0  # and a heartbeat leaves
    world.turn_decode()
    assert _orders_that_arrive(world) == 2  # both handoffs wait
    world.close()
