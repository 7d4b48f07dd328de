"""An operator's word for a life that is lost and cannot be fenced: taken once, for that life alone, and for good."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lineclear.base.ids import WorkerId
from lineclear.protocol.handoff.names import Peer
from lineclear.transport.movers.fake import FakeAdmission
from tests.property.handoff_world import HandoffWorld, until, world_with_a_write_in_flight

LIFE = Peer(WorkerId("prefill-0"), 0, 1)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandoffWorld]:
    """A handoff whose write has not landed, whose link is cut, and whose writer cannot be proven gone."""
    monkeypatch.setattr(FakeAdmission, "fence", lambda _: False)
    world = world_with_a_write_in_flight(tmp_path)
    world.decode_desk.on_instances([])  # it does not connect again
    world.cut_link()
    until(world, lambda: world.decode_desk.statistics().blocks_quarantined > 0, prefill=False)
    yield world
    world.close()


def test_what_waits_is_told_with_the_life_it_waits_for(world: HandoffWorld) -> None:
    world.time += 10.0
    statistics = world.decode_desk.statistics()
    (writer,) = statistics.quarantine
    assert (writer.worker_id, writer.rank, writer.life, writer.num_handoffs) == ("prefill-0", 0, 1, 1)
    assert writer.num_blocks == statistics.blocks_quarantined == 3
    assert writer.seconds >= 10.0


def test_time_frees_nothing_and_the_word_frees_all(world: HandoffWorld) -> None:
    for _ in range(200):
        world.time += 60.0
        world.turn_decode()
    assert world.decode_desk.statistics().blocks_quarantined == 3
    assert world.decode_desk.vouch(LIFE) == 3
    until(world, lambda: not world.decode.has_work, prefill=False)
    statistics = world.decode_desk.statistics()
    assert (statistics.blocks_quarantined, statistics.blocks_vouched, statistics.num_open) == (0, 3, 0)
    assert statistics.quarantine == []
    pool = world.decode.pool.statistics()
    assert pool.held == pool.idle
    world.decode.scheduler.check()


@pytest.mark.parametrize(
    "peer", [Peer(WorkerId("prefill-0"), 0, 2), Peer(WorkerId("prefill-0"), 1, 1), Peer(WorkerId("prefill-1"), 0, 1)]
)
def test_a_word_for_another_life_frees_nothing(world: HandoffWorld, peer: Peer) -> None:
    assert world.decode_desk.vouch(peer) == 0
    assert world.decode_desk.statistics().blocks_quarantined == 3


def test_the_word_is_for_good(world: HandoffWorld) -> None:
    assert world.decode_desk.vouch(LIFE) == 3
    assert world.decode_desk.vouch(LIFE) == 0
    world.decode_desk.on_instances(
        [str(world.prefill.ranks[0].endpoint)]
    )  # it is there again, with the identity it had
    for _ in range(200):
        world.time += 0.05
        world.turn_decode()
        world.turn_prefill()
        if world.prefill is None:  # it was told that its life is over, and ended
            break
    assert world.prefill is None
    assert world.decode_desk.statistics().num_peers == 0


def test_an_instance_that_is_connected_answers_by_itself(tmp_path: Path) -> None:
    world = world_with_a_write_in_flight(tmp_path)
    assert world.decode_desk.vouch(LIFE) == 0
    assert world.decode_desk.statistics().num_open == 1
    world.close()
