from array import array
from collections.abc import Callable
from typing import Any

import pytest

from lineclear.base.errors import InvariantError
from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.radix import PrefixNode, RadixTree

ALICE = Holder(HolderKind.SEQUENCE, 1)
BOB = Holder(HolderKind.SEQUENCE, 2)
BLOCK_SIZE = 2


def tokens(*token_ids: int) -> array:
    return array("I", token_ids)


class Fixture:
    """A tree, and sequences that insert what they have computed and go."""

    def __init__(self, num_blocks: int = 16) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool, BLOCK_SIZE)

    def insert(self, known: "array[int]", now: int = 0, holder: Holder = ALICE, keep: bool = False) -> PrefixNode:
        """Insert all full blocks of `known` whose follower is known, in fresh blocks where the tree has none."""
        prefix = self.tree.match(known, now)
        shared = self.tree.block_ids(prefix)
        self.pool.acquire(shared, holder)
        own = self.pool.try_allocate((len(known) - 1) // BLOCK_SIZE - prefix.num_blocks, holder)
        node = self.tree.insert(prefix, known, own, now)
        if not keep:
            self.pool.release(shared + own, holder)
        return node

    def matched(self, known: "array[int]", now: int = 0) -> list[int]:
        return self.tree.block_ids(self.tree.match(known, now))


def test_an_empty_tree_matches_nothing() -> None:
    fixture = Fixture()
    node = fixture.tree.match(tokens(1, 2, 3, 4, 5), 0)
    assert node is fixture.tree.root
    assert (node.num_blocks, fixture.tree.block_ids(node)) == (0, [])


def test_a_prefix_is_found_block_by_block() -> None:
    fixture = Fixture()
    node = fixture.insert(tokens(1, 2, 3, 4, 5, 6, 7))
    assert fixture.tree.block_ids(node) == [0, 1, 2]
    assert fixture.matched(tokens(1, 2, 3, 4, 5, 9, 9)) == [0, 1]
    assert fixture.matched(tokens(1, 2, 3, 4, 5, 6, 7, 8, 9)) == [0, 1, 2]
    assert fixture.matched(tokens(9, 2, 3)) == []
    fixture.tree.check()


def test_the_last_token_is_never_matched() -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3, 4, 5))
    assert fixture.matched(tokens(1, 2, 3, 4)) == [0]
    assert fixture.matched(tokens(1, 2)) == []
    assert fixture.matched(tokens(1)) == []


def test_a_block_with_another_follower_is_another_block() -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3))
    assert fixture.matched(tokens(1, 2, 3, 9)) == [0]
    assert fixture.matched(tokens(1, 2, 4, 9)) == []
    fixture.insert(tokens(1, 2, 4))
    assert fixture.matched(tokens(1, 2, 4, 9)) == [1]
    assert fixture.matched(tokens(1, 2, 3, 9)) == [0]


def test_a_prefix_that_is_there_keeps_its_own_block() -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3, 4, 5))
    duplicate = fixture.pool.try_allocate(3, BOB)
    node = fixture.tree.insert(fixture.tree.root, tokens(1, 2, 3, 4, 5, 6, 7), duplicate, 1)
    assert fixture.tree.block_ids(node) == [0, 1, duplicate[2]]
    assert fixture.pool.holders(duplicate[0]) == (BOB,)


def test_insertion_goes_on_from_a_cursor() -> None:
    fixture = Fixture()
    known = tokens(1, 2, 3, 4, 5, 6, 7)
    blocks = fixture.pool.try_allocate(3, ALICE)
    node = fixture.tree.insert(fixture.tree.root, known[:3], blocks[:1], 0)
    assert fixture.tree.next_key(node, known) == known[2:5].tobytes()
    node = fixture.tree.insert(node, known, blocks[1:], 0)
    assert fixture.matched(known) == blocks
    assert fixture.tree.next_key(node, known) is None


def test_a_search_goes_on_from_an_earlier_match_or_from_what_is_left_of_it() -> None:
    fixture = Fixture()
    known = tokens(1, 2, 3, 4, 5, 6, 7)
    short = fixture.insert(known[:5])
    assert fixture.tree.match(known, 0, short) is short
    fixture.insert(known)
    long = fixture.tree.match(known, 0, short)
    assert long.num_blocks == 3
    fixture.tree.evict(2)
    left = fixture.tree.match(known, 0, long)
    assert (left.num_blocks, left.is_alive, long.is_alive) == (1, True, False)


@pytest.mark.parametrize("known", [tokens(1, 2), tokens(1, 2, 3, 4)])
def test_a_block_without_its_follower_is_not_inserted(known: "array[int]") -> None:
    fixture = Fixture()
    blocks = fixture.pool.try_allocate(len(known) // BLOCK_SIZE, ALICE)
    with pytest.raises(InvariantError, match="insert"):
        fixture.tree.insert(fixture.tree.root, known, blocks, 0)


def test_nothing_is_inserted_under_a_node_that_is_gone() -> None:
    fixture = Fixture()
    node = fixture.insert(tokens(1, 2, 3))
    fixture.tree.evict(1)
    blocks = fixture.pool.try_allocate(1, ALICE)
    with pytest.raises(InvariantError, match="is_alive=False"):
        fixture.tree.insert(node, tokens(1, 2, 3, 4, 5), blocks, 0)


def test_the_least_recently_used_goes_first_and_leaves_before_their_parents() -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3, 4, 5), now=1)
    fixture.insert(tokens(6, 7, 8), now=2)
    fixture.tree.check()  # both leaves are candidates now
    fixture.matched(tokens(1, 2, 3, 4, 5), now=3)
    assert fixture.tree.evict(1) == 1
    assert fixture.matched(tokens(6, 7, 8), now=4) == []
    assert fixture.tree.evict(1) == 1
    assert fixture.matched(tokens(1, 2, 3, 4, 5), now=5) == [0]
    fixture.tree.check()


def test_a_parent_is_as_recent_as_the_child_that_went() -> None:
    fixture = Fixture()
    old = fixture.insert(tokens(6, 7, 8), now=1, keep=True)
    fixture.insert(tokens(1, 2, 3, 4, 5), now=5)
    assert fixture.tree.evict(1) == 1
    fixture.pool.release(fixture.tree.block_ids(old), ALICE)
    assert fixture.tree.evict(1) == 1
    assert not old.is_alive
    assert len(fixture.matched(tokens(1, 2, 3), now=6)) == 1


def test_blocks_in_use_are_not_evicted() -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3, 4, 5), keep=True)
    fixture.insert(tokens(1, 2, 3, 6, 7), now=1, holder=BOB)
    assert fixture.tree.num_evictable_blocks == 1
    assert fixture.tree.evict(5) == 1
    assert fixture.matched(tokens(1, 2, 3, 4, 5)) == [0, 1]
    fixture.pool.release([0, 1], ALICE)
    assert fixture.tree.evict(5) == 2
    assert fixture.pool.num_free == 16
    fixture.tree.check()


def test_a_block_taken_and_given_back_is_evictable_again() -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3))
    for _ in range(3):
        fixture.pool.acquire([0], BOB)
        assert fixture.tree.evict(1) == 0
        fixture.pool.release([0], BOB)
    fixture.tree.check()
    assert fixture.tree.evict(1) == 1


def test_a_leaf_that_got_a_child_is_evictable_after_it() -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3))
    fixture.tree.check()  # the leaf is a candidate now
    fixture.insert(tokens(1, 2, 3, 4, 5), keep=True)
    assert fixture.tree.evict(2) == 0
    fixture.pool.release([0, 1], ALICE)
    fixture.tree.check()
    assert fixture.tree.evict(2) == 2


def test_a_quarantined_block_is_given_up_but_not_freed() -> None:
    fixture = Fixture(num_blocks=2)
    fixture.insert(tokens(1, 2, 3), now=1)
    fixture.insert(tokens(4, 5, 6), now=2)
    fixture.pool.quarantine([0])
    assert fixture.tree.evict(2) == 1
    assert (fixture.pool.num_free, fixture.pool.statistics().quarantined) == (1, 1)
    fixture.tree.check()


def test_a_forgotten_prefix_goes_with_all_beyond_any_part_of_it_whoever_holds_it() -> None:
    fixture = Fixture()
    suspect = fixture.insert(tokens(1, 2, 3, 4, 5))
    fixture.insert(tokens(1, 2, 3, 9, 9, 9, 9))
    held = fixture.insert(tokens(1, 2, 3, 7, 7), holder=BOB, keep=True)
    fixture.insert(tokens(8, 8, 8))
    assert fixture.tree.forget(suspect) == 5
    assert fixture.matched(tokens(1, 2, 3, 4, 5)) == fixture.matched(tokens(1, 2, 3, 7, 7)) == []
    assert not held.is_alive
    assert len(fixture.matched(tokens(8, 8, 8))) == 1
    assert fixture.tree.forget(suspect) == 0
    assert fixture.tree.forget(fixture.tree.root) == 0
    fixture.tree.check()
    fixture.pool.release(fixture.tree.block_ids(held), BOB)
    assert fixture.tree.evict(16) == 1
    assert fixture.pool.num_free == 16
    fixture.tree.check()


def test_statistics() -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3, 4, 5, 6, 7))
    fixture.tree.evict(1)
    statistics = fixture.tree.statistics()
    assert (statistics.num_nodes, statistics.num_evictable_blocks) == (2, 2)
    assert (statistics.num_inserted, statistics.num_evicted) == (3, 1)


def damage_child(tree: RadixTree) -> None:
    tree.root.children.popitem()


def damage_hold(tree: RadixTree) -> None:
    tree._pool.release([1], Holder(HolderKind.TREE, 0))


def damage_depth(tree: RadixTree) -> None:
    next(iter(tree.root.children.values())).num_blocks = 5


def damage_liveness(tree: RadixTree) -> None:
    next(iter(tree.root.children.values())).is_alive = False


def damage_candidates(tree: RadixTree) -> None:
    tree._candidates[0][2].is_candidate = False


def damage_heap(tree: RadixTree) -> None:
    tree._candidates.clear()
    for node in tree._nodes.values():
        node.is_candidate = False


def damage_index(tree: RadixTree) -> None:
    tree._nodes[7] = tree._nodes[0]


@pytest.mark.parametrize(
    "damage",
    [damage_child, damage_hold, damage_depth, damage_liveness, damage_candidates, damage_heap, damage_index],
)
def test_the_check_finds_each_kind_of_damage(damage: Callable[[Any], object]) -> None:
    fixture = Fixture()
    fixture.insert(tokens(1, 2, 3, 4, 5))
    fixture.tree.check()
    damage(fixture.tree)
    with pytest.raises(InvariantError):
        fixture.tree.check()


def test_a_tree_of_empty_blocks_is_refused() -> None:
    with pytest.raises(InvariantError, match="block_size"):
        RadixTree(BlockPool(1), 0)
