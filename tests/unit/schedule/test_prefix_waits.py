from array import array

import pytest

from lineclear.base.ids import SequenceId
from lineclear.kv.pool import BlockPool
from lineclear.kv.radix import RadixTree
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.prefix_waits import PrefixWaits, _common_len
from lineclear.schedule.sequence import Sequence, SequenceState
from tests.unit.schedule.desk import Desk


def make_sequence(sequence_id: int, prompt: list[int], tree: RadixTree) -> Sequence:
    sequence = Sequence(SequenceId(sequence_id), prompt, SamplingParams(max_tokens=1))
    sequence.prefix = tree.root
    return sequence


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(BlockPool(8), 2)


def advance(tree: RadixTree, sequence: Sequence, num_blocks: int) -> None:
    """Let a sequence compute and publish some blocks."""
    blocks = tree._pool.try_allocate(num_blocks, sequence.holder)
    sequence.prefix = tree.insert(sequence.prefix, sequence.tokens, blocks, 0)


@pytest.mark.parametrize(
    ("prompt", "num_blocks"),
    [([1, 2, 3, 4, 5, 9, 9, 9], 2), ([1, 2, 3, 4, 9, 9], 1), ([1, 2, 3, 9, 9], 1), ([1, 2, 3, 4, 5, 6, 7, 8], 3)],
)
def test_a_follower_waits_until_all_that_is_common_is_there(
    tree: RadixTree, prompt: list[int], num_blocks: int
) -> None:
    waits = PrefixWaits(tree)
    leader, follower = make_sequence(1, [1, 2, 3, 4, 5, 6, 7, 8], tree), make_sequence(2, prompt, tree)
    leader.state = SequenceState.RUNNING
    waits.note_leaders([leader])
    assert waits.must_wait(follower, tree.root)
    for _ in range(num_blocks):
        assert waits.is_waiting(follower)
        advance(tree, leader, 1)
    assert not waits.is_waiting(follower)
    waits.note_leaders([leader])
    assert not waits.must_wait(follower, tree.match(follower.tokens, 0))


@pytest.mark.parametrize("state", [SequenceState.WAITING, SequenceState.FINISHED])
def test_a_leader_that_runs_no_more_is_not_waited_for(tree: RadixTree, state: SequenceState) -> None:
    waits = PrefixWaits(tree)
    leader, follower = make_sequence(1, [1, 2, 3, 4, 5], tree), make_sequence(2, [1, 2, 3, 4, 5], tree)
    leader.state = SequenceState.RUNNING
    waits.note_leader(leader)
    assert waits.must_wait(follower, tree.root)
    leader.state = state
    assert not waits.is_waiting(follower)


@pytest.mark.parametrize("prompt", [[1, 2], [1, 2, 4, 4], [9, 2, 3]])
def test_nobody_waits_for_less_than_a_block_with_its_follower(tree: RadixTree, prompt: list[int]) -> None:
    waits = PrefixWaits(tree)
    waits.note_leader(make_sequence(1, [1, 2, 3, 4, 5], tree))
    assert not waits.must_wait(make_sequence(2, prompt, tree), tree.root)


def test_who_has_published_all_it_knows_leads_nobody(tree: RadixTree) -> None:
    waits = PrefixWaits(tree)
    leader = make_sequence(1, [1, 2, 3, 4], tree)
    advance(tree, leader, 1)
    waits.note_leader(leader)
    assert not waits.must_wait(make_sequence(2, [1, 2, 3, 4, 5], tree), leader.prefix)


def test_what_is_forgotten_does_not_wait(tree: RadixTree) -> None:
    waits = PrefixWaits(tree)
    leader, follower = make_sequence(1, [1, 2, 3], tree), make_sequence(2, [1, 2, 3], tree)
    leader.state = SequenceState.RUNNING
    waits.note_leader(leader)
    assert waits.must_wait(follower, tree.root)
    waits.forget(follower)
    assert not waits.is_waiting(follower)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([], [1], 0), ([1], [2], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3, 9], [1, 2, 3, 8], 3), ([7] * 50, [7] * 50, 50)],
)
def test_common_prefixes(first: list[int], second: list[int], expected: int) -> None:
    assert _common_len(array("I", first), array("I", second)) == expected
    assert _common_len(array("I", second), array("I", first)) == expected


def test_without_a_prefix_cache_nobody_waits_and_nothing_is_kept() -> None:
    desk = Desk(prefix_cache=False, max_batch_tokens=4)
    first, second = desk.add(range(1, 14), max_tokens=2), desk.add(range(1, 14), max_tokens=2)
    while desk.scheduler.has_work:
        desk.step()
    assert first.num_cached_tokens == second.num_cached_tokens == 0
    assert desk.pool.num_free == desk.pool.statistics().total
