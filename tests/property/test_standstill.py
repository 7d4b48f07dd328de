"""Writes that never end, on links that are well: the prefill life ends, and its blocks come back at both ends."""

from pathlib import Path

import pytest

from lineclear.protocol.sampling import SamplingParams
from lineclear.worker.desk import LifeOverError
from lineclear.worker.sender_desk import STANDSTILL_SECONDS
from tests.property.handoff_world import until, world_with_a_write_in_flight


def test_a_life_whose_writes_stand_still_ends_and_decode_gets_its_blocks_back(tmp_path: Path) -> None:
    world = world_with_a_write_in_flight(tmp_path)
    desk = world.prefill.desk
    for _ in range(3):
        world.time += STANDSTILL_SECONDS / 4
        desk.turn()
    assert 0 < desk.seconds_until_due() <= STANDSTILL_SECONDS / 4
    world.time += STANDSTILL_SECONDS / 4
    assert desk.seconds_until_due() == 0
    with pytest.raises(LifeOverError, match="no write has ended"):
        desk.turn()
    world.kill_prefill()  # as its process ends
    until(world, lambda: not world.decode_desk.statistics().num_open, prefill=False)
    until(world, lambda: not world.decode.has_work, prefill=False)
    pool = world.decode.pool.statistics()
    assert pool.held == pool.idle
    world.close()


def test_writes_that_end_one_by_one_may_take_their_time(tmp_path: Path) -> None:
    world = world_with_a_write_in_flight(tmp_path)
    writer, desk = world.prefill.writer, world.prefill.desk
    world.submit([2] * 12, SamplingParams(max_tokens=2, ignore_eos=True))
    until(world, lambda: len(writer.flying) >= 2)
    for _ in range(2):
        world.time += STANDSTILL_SECONDS * 0.9
        writer.land(writer.flying[0])
        desk.turn()
    world.close()
