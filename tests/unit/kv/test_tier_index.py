import pytest

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId
from lineclear.kv.pool import Holder, HolderKind
from lineclear.kv.prefix_key import PrefixKey, child_key, family_of
from lineclear.kv.tier_index import Named, TierIndex

WRITER = Holder(HolderKind.WRITER, 1)


def chain(*edges: bytes) -> list[Named]:
    names: list[Named] = []
    key: PrefixKey | None = None
    for edge in edges:
        parent, key = key, child_key(key, edge)
        names.append(Named(key, parent))
    return names


def add(index: TierIndex, names: list[Named], now: int) -> list[BlockId]:
    block_ids = index.pool.try_allocate(len(names), WRITER)
    assert block_ids is not None
    for named, block_id in zip(names, block_ids, strict=True):
        index.add(named, block_id, now)
    index.pool.release(block_ids, WRITER)
    index.check()
    return block_ids


def test_the_end_of_a_prefix_goes_before_its_beginning() -> None:
    index, names = TierIndex(4), chain(b"a", b"b", b"c")
    add(index, names, now=1)
    assert index.evict(3) == [names[2].key, names[1].key]
    assert list(index) == [names[0].key]
    index.check()


def test_the_least_recently_used_goes_first_and_hands_its_stamp_on() -> None:
    index, used, other = TierIndex(5), chain(b"a", b"b"), chain(b"x", b"y")
    add(index, used, now=1)
    add(index, other, now=2)
    index.touch(used[1].key, now=3)
    assert index.evict(3) == [other[1].key, other[0].key]
    index.check()


def test_a_block_may_be_here_before_the_one_before_it() -> None:
    index, names = TierIndex(3), chain(b"a", b"b")
    add(index, names[1:], now=1)
    add(index, names[:1], now=2)
    assert index.coldest() == names[1].key


def test_what_is_held_is_not_evicted() -> None:
    index, names = TierIndex(2), chain(b"a")
    block_ids = add(index, names, now=1)
    reader = Holder(HolderKind.READER, 1)
    index.pool.acquire(block_ids, reader)
    assert index.evict(2) == []
    index.pool.release(block_ids, reader)
    assert index.evict(2) == [names[0].key]


def test_a_family_is_forgotten_also_under_its_readers() -> None:
    index, names, other = TierIndex(4), chain(b"a", b"b"), chain(b"x")
    block_ids = add(index, names, now=1)
    add(index, other, now=1)
    reader = Holder(HolderKind.READER, 1)
    index.pool.acquire(block_ids[:1], reader)
    assert index.forget_family(family_of(names[0].key)) == [each.key for each in names]
    assert list(index) == [other[0].key]
    assert index.pool.statistics().held == 2
    index.pool.release(block_ids[:1], reader)
    assert index.pool.num_free == 3
    index.check()


def test_nothing_is_added_twice() -> None:
    index, names = TierIndex(4), chain(b"a")
    block_ids = add(index, names, now=1)
    with pytest.raises(InvariantError, match="has it"):
        index.add(names[0], block_ids[0], now=2)
