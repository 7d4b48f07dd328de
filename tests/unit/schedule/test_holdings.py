from collections.abc import Callable

import pytest

from lineclear.base.errors import InvariantError
from lineclear.base.ids import SequenceId
from lineclear.kv.pool import Holder, HolderKind
from lineclear.kv.radix import TREE_HOLDER
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.holdings import Holdings
from lineclear.schedule.sequence import Sequence
from tests.unit.schedule.desk import Desk


def test_a_table_is_extended_as_far_as_there_is_room() -> None:
    desk = Desk(num_blocks=3)
    holdings = Holdings(desk.pool, desk.tree)
    sequence = Sequence(SequenceId(1), [1] * 20, SamplingParams(max_tokens=1))
    assert holdings.extend_towards(sequence, 5) == 5
    assert len(sequence.block_table) == 2
    assert holdings.extend_towards(sequence, 20) == 12
    assert holdings.extend_towards(sequence, 20) == 12


def test_what_is_published_must_have_been_admitted() -> None:
    desk = Desk()
    sequence = Sequence(SequenceId(1), [1] * 20, SamplingParams(max_tokens=1))
    with pytest.raises(InvariantError, match="before it is admitted"):
        Holdings(desk.pool, desk.tree).publish(sequence, 0)


def stranger(desk: Desk) -> None:
    desk.pool.try_allocate(1, Holder(HolderKind.SEQUENCE, 77))


def stale_writer(desk: Desk) -> None:
    desk.pool.acquire([2], Holder(HolderKind.WRITER, 77))


def lost_writer(desk: Desk) -> None:
    desk.pool.release([2], desk.scheduler._holdings._writer)


def read_while_written(desk: Desk) -> None:
    desk.pool.acquire([2], Holder(HolderKind.READER, 1))


def shared_while_written(desk: Desk) -> None:
    second = desk.sequences[SequenceId(2)]
    desk.pool.acquire([2], second.holder)
    second.block_table.extend([2])


def block_without_hold(desk: Desk) -> None:
    desk.sequences[SequenceId(1)].block_table.extend([20])


def other_block_than_the_prefix(desk: Desk) -> None:
    first = desk.sequences[SequenceId(1)]
    first.block_table[0], first.block_table[1] = first.block_table[1], first.block_table[0]


def lost_prefix(desk: Desk) -> None:
    desk.sequences[SequenceId(1)].prefix = None


@pytest.mark.parametrize(
    "damage",
    [
        stranger,
        stale_writer,
        lost_writer,
        read_while_written,
        shared_while_written,
        block_without_hold,
        other_block_than_the_prefix,
        lost_prefix,
    ],
)
def test_the_check_finds_each_kind_of_damage(damage: Callable[[Desk], None]) -> None:
    desk = Desk()
    desk.add(range(1, 10))
    desk.add([5, 6])
    desk.step()
    desk.plan()
    assert desk.pool.holders(0)[1] == TREE_HOLDER
    desk.scheduler.check()
    damage(desk)
    with pytest.raises(InvariantError):
        desk.scheduler.check()
