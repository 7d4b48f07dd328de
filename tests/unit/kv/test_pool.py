from collections.abc import Callable
from typing import Any

import pytest

from lineclear.base.errors import InvariantError
from lineclear.kv.pool import BlockPool, Holder, HolderKind

ALICE = Holder(HolderKind.SEQUENCE, 1)
BOB = Holder(HolderKind.SEQUENCE, 2)
TREE = Holder(HolderKind.TREE, 0)
WRITER = Holder(HolderKind.WRITER, 9)


def test_blocks_are_handed_out_all_or_none() -> None:
    pool = BlockPool(3)
    assert pool.try_allocate(2, ALICE) == [0, 1]
    assert pool.try_allocate(2, BOB) is None
    assert pool.num_free == 1
    assert pool.try_allocate(0, BOB) == []
    assert pool.try_allocate(1, BOB) == [2]
    pool.check()


def test_a_freed_block_is_reused_as_late_as_possible() -> None:
    pool = BlockPool(3)
    pool.release(pool.try_allocate(1, ALICE), ALICE)
    assert [pool.try_allocate(1, ALICE) for _ in range(3)] == [[1], [2], [0]]


def test_blocks_of_one_allocation_are_in_the_order_of_memory_whatever_order_they_became_free_in() -> None:
    pool = BlockPool(6)
    pool.release(reversed(pool.try_allocate(4, ALICE)), ALICE)  # as eviction does, from a prefix's end
    assert pool.try_allocate(4, BOB) == [2, 3, 4, 5]
    assert pool.try_allocate(2, BOB) == [0, 1]


def test_the_end_of_a_sequence_does_not_end_its_writer() -> None:
    pool = BlockPool(1)
    blocks = pool.try_allocate(1, ALICE)
    pool.acquire(blocks, WRITER)
    pool.release(blocks, ALICE)
    assert pool.num_free == 0
    assert pool.holders(blocks[0]) == (WRITER,)
    pool.release(blocks, WRITER)
    assert pool.num_free == 1


def test_every_allocation_has_a_number_of_its_own() -> None:
    pool = BlockPool(1)
    numbers = [pool.allocation(0)]
    for _ in range(3):
        blocks = pool.try_allocate(1, ALICE)
        pool.acquire(blocks, BOB)
        numbers.append(pool.allocation(0))
        pool.release(blocks, ALICE)
        pool.release(blocks, BOB)
    assert numbers == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda pool: pool.acquire([1], ALICE),
        lambda pool: pool.acquire([0], ALICE),
        lambda pool: pool.release([0], BOB),
        lambda pool: pool.release([1], ALICE),
        lambda pool: pool.quarantine([1]),
        lambda pool: pool.release_quarantine([0]),
    ],
    ids=[
        "acquire free",
        "acquire twice",
        "release another's",
        "release free",
        "quarantine free",
        "leave no quarantine",
    ],
)
def test_what_only_a_fault_would_do_is_refused(wrong: Callable[[BlockPool], None]) -> None:
    pool = BlockPool(2)
    pool.try_allocate(1, ALICE)
    with pytest.raises(InvariantError):
        wrong(pool)
    pool.check()


def test_a_refusal_names_both_owners() -> None:
    pool = BlockPool(1)
    pool.try_allocate(1, ALICE)
    with pytest.raises(InvariantError, match=r"sequence 2 does not hold block 0 \(allocation 1, held by sequence 1\)"):
        pool.release([0], BOB)


def test_a_marked_block_goes_to_quarantine_with_its_last_hold_and_leaves_it_by_proof() -> None:
    pool = BlockPool(2)
    pool.try_allocate(1, ALICE)
    pool.acquire([0], WRITER)
    pool.quarantine([0])
    pool.release([0], ALICE)
    assert pool.statistics().quarantined == 0
    pool.release([0], WRITER)
    assert (pool.statistics().quarantined, pool.num_free, pool.num_usable) == (1, 1, 1)
    pool.check()
    pool.release_quarantine([0])
    assert (pool.statistics().quarantined, pool.num_free, pool.num_usable) == (0, 2, 2)
    pool.check()


def test_a_mark_taken_back_in_time_leaves_no_trace() -> None:
    pool = BlockPool(1)
    pool.try_allocate(1, ALICE)
    pool.quarantine([0])
    pool.release_quarantine([0])
    pool.release([0], ALICE)
    assert pool.num_free == 1


def test_what_the_tree_alone_keeps_is_idle() -> None:
    pool = BlockPool(2)
    pool.try_allocate(1, ALICE)
    pool.acquire([0], TREE)
    assert (pool.num_idle, pool.is_idle(0)) == (0, False)
    pool.release([0], ALICE)
    assert (pool.num_idle, pool.is_idle(0)) == (1, True)
    assert pool.take_newly_idle() == [0]
    assert pool.take_newly_idle() == []
    pool.acquire([0], BOB)
    assert (pool.num_idle, pool.is_idle(0)) == (0, False)
    pool.release([0], TREE)
    assert pool.num_idle == 0
    pool.check()
    assert pool.try_allocate(1, TREE) == [1]
    assert pool.num_idle == 1
    assert pool.take_newly_idle() == [1]
    pool.release([1], TREE)
    assert pool.num_idle == 0
    pool.check()


def test_statistics_count_blocks_and_holds() -> None:
    pool = BlockPool(4)
    pool.try_allocate(2, ALICE)
    pool.acquire([0, 1], TREE)
    pool.acquire([1], WRITER)
    pool.release([0], ALICE)
    statistics = pool.statistics()
    assert (statistics.total, statistics.free, statistics.held, statistics.quarantined) == (4, 2, 2, 0)
    assert statistics.idle == 1
    assert statistics.holds_by_kind == {
        HolderKind.SEQUENCE: 1,
        HolderKind.TREE: 2,
        HolderKind.WRITER: 1,
        HolderKind.READER: 0,
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool: pool._free.append(0),
        lambda pool: pool._free.append(3),
        lambda pool: pool._free.popleft(),
        lambda pool: pool._holders[0].clear(),
        lambda pool: pool._quarantined.add(1),
        lambda pool: pool._marked.add(2),
        lambda pool: pool._num_holds.__setitem__(0, 5),
        lambda pool: pool._tree_held.__setitem__(0, 1),
        lambda pool: setattr(pool, "_num_idle", 0),
    ],
)
def test_the_check_finds_each_kind_of_damage(damage: Callable[[Any], object]) -> None:
    pool = BlockPool(4)
    pool.try_allocate(2, ALICE)
    pool.acquire([1], TREE)
    pool.release([1], ALICE)
    pool.check()
    damage(pool)
    with pytest.raises(InvariantError):
        pool.check()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(InvariantError, match="num_blocks"):
        BlockPool(0)
