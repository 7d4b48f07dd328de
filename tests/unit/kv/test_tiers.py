from array import array

import pytest

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId, SequenceId
from lineclear.kv.copies import CopyEnd, CopyFailure, DiskDelete, DiskFind, DiskRead, DiskWrite, Load, Offload
from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.radix import PrefixNode, RadixTree
from lineclear.kv.tiers import Tiers, TiersConfig

TOKENS = array("I", range(13))
"""Three blocks of four tokens, and the follower."""
SEQUENCE = SequenceId(1)


class World:
    def __init__(self, offload: OffloadPolicy, *, num_blocks: int = 4, num_host: int = 4, num_disk: int = 0) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool, 4)
        config = TiersConfig(num_host, num_disk, offload, PrefetchPolicy.WAIT, num_ahead_blocks=1)
        self.tiers = Tiers(config, self.pool, self.tree)
        self.num_sequences = 0

    def holder(self) -> Holder:
        self.num_sequences += 1
        return Holder(HolderKind.SEQUENCE, self.num_sequences)

    def compute(self, tokens: "array[int]" = TOKENS) -> PrefixNode:
        """A sequence computes a prompt and ends."""
        holder = self.holder()
        count = (len(tokens) - 1) // 4
        self.tree.evict(count - self.pool.num_free)
        block_ids = self.pool.try_allocate(count, holder)
        assert block_ids is not None
        node = self.tree.insert(self.tree.root, tokens, block_ids, 1)
        self.tiers.note_inserted(self.tree.root, node, 1)
        self.pool.release(block_ids, holder)
        return node

    def take(self, kind: type) -> list:
        copies = self.tiers.take_copies()
        assert all(isinstance(copy, kind) for copy in copies), copies
        return copies

    def end_all(self, failure: CopyFailure | None = None) -> None:
        for _ in range(9):
            for copy in self.tiers.take_copies():
                if not isinstance(copy, DiskDelete):
                    size = len(copy.keys) if isinstance(copy, DiskFind) else len(copy.host_block_ids)
                    self.tiers.end(CopyEnd(copy.copy_id, 0 if failure else size, failure))
        self.tiers.check()

    def num_on_host(self) -> int:
        return len(self.tiers.find(self.tree.root, TOKENS))


def test_write_through_copies_down_what_is_inserted_and_finds_it_after_eviction() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH)
    node = world.compute()
    (offload,) = world.take(Offload)
    assert list(offload.device_block_ids) == world.tree.block_ids(node)
    assert world.num_on_host() == 0
    world.tiers.end(CopyEnd(offload.copy_id, 3))
    world.tree.evict(4)
    hit = world.tiers.find(world.tree.root, TOKENS)
    assert hit.host_block_ids == offload.host_block_ids
    assert len(world.tiers.find(world.tree.root, TOKENS[:9])) == 2


def test_the_source_of_an_offload_is_held_until_it_ends() -> None:
    """The tree gives the blocks up, their sequence has ended, and still nobody gets them."""
    world = World(OffloadPolicy.WRITE_THROUGH)
    world.compute()
    (offload,) = world.take(Offload)
    assert world.tree.evict(4) == 0
    assert world.pool.num_free == 1
    world.tiers.end(CopyEnd(offload.copy_id, 3))
    assert world.tree.evict(4) == 3


def test_the_ends_of_a_load_hold_its_blocks_whatever_becomes_of_the_sequence() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH)
    world.compute()
    world.end_all()
    world.tree.evict(4)
    hit = world.tiers.find(world.tree.root, TOKENS)
    holder = world.holder()
    block_ids = world.pool.try_allocate(3, holder)
    assert block_ids is not None
    load_id = world.tiers.begin_load(hit, block_ids, counts=True)
    assert world.take(Load) == [Load(load_id, hit.host_block_ids, tuple(block_ids))]
    world.pool.release(block_ids, holder)  # cancelled
    assert world.pool.num_free == 1
    world.compute(array("I", range(50, 55)))  # wants a block of the host
    world.end_all()
    assert world.num_on_host() == 3
    world.tiers.end(CopyEnd(load_id, 3))
    world.tiers.check()
    assert world.pool.num_free == 3
    with pytest.raises(InvariantError, match="twice"):
        world.tiers.end(CopyEnd(load_id, 3))


def test_selective_copies_down_what_is_used_again() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH_SELECTIVE)
    node = world.compute()
    assert world.take(Offload) == []
    world.tiers.note_used(node, 2)
    assert len(world.take(Offload)) == 1
    world.tiers.note_used(node, 3)
    assert world.take(Offload) == []


def test_write_back_copies_down_what_is_about_to_go() -> None:
    world = World(OffloadPolicy.WRITE_BACK, num_blocks=8, num_host=8)
    world.compute(array("I", range(33)))
    assert world.take(Offload) == []
    world.tiers.write_back(2)
    (offload,) = world.take(Offload)
    assert len(offload.device_block_ids) == 1
    assert world.pool.num_free == 0
    world.tiers.end(CopyEnd(offload.copy_id, 1))
    assert world.pool.num_free == 1
    world.tiers.write_back(3)
    assert world.take(Offload) == []


def test_an_offload_that_fails_leaves_nothing_behind() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH)
    node = world.compute()
    world.end_all(CopyFailure.COPY)
    assert world.num_on_host() == 0
    assert world.tiers.statistics().host.free == 4
    assert world.tiers.statistics().failures == {CopyFailure.COPY: 1}
    world.tiers.note_used(node, 2)  # and the next use tries again
    world.end_all()
    assert world.num_on_host() == 3


def test_a_host_without_room_takes_the_beginning() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH, num_host=2)
    world.compute()
    world.end_all()
    assert world.num_on_host() == 2


def test_what_is_written_to_disk_comes_back_by_prefetch() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH, num_host=3, num_disk=8)
    world.compute()
    world.end_all()
    world.tree.evict(4)
    world.compute(array("I", range(100, 113)))
    world.end_all()
    assert world.num_on_host() == 0
    world.tiers.begin_prefetch(SEQUENCE, world.tree.root, TOKENS)
    assert world.tiers.is_waiting(SEQUENCE)
    (find,) = world.take(DiskFind)
    world.tiers.end(CopyEnd(find.copy_id, 3))
    (read,) = world.take(DiskRead)
    assert world.tiers.is_waiting(SEQUENCE)
    world.tiers.end(CopyEnd(read.copy_id, 3))
    assert not world.tiers.is_waiting(SEQUENCE)
    hit = world.tiers.find(world.tree.root, TOKENS)
    assert hit.host_block_ids == read.host_block_ids
    world.tree.evict(4)
    block_ids = world.pool.try_allocate(3, world.holder())
    assert block_ids is not None
    world.tiers.begin_load(hit, block_ids, counts=True)
    statistics = world.tiers.statistics()
    assert (statistics.host_hit_tokens, statistics.disk_hit_tokens) == (0, 12)


def test_a_prefetch_takes_the_place_of_others_and_not_of_its_own_prompt() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH, num_disk=8)
    world.compute()
    world.end_all()
    other = world.compute(array("I", range(100, 113)))
    world.end_all()
    world.tiers.note_used(other, 2)
    assert world.num_on_host() == 1  # the others have gone to disk, to make room
    world.tree.evict(4)
    world.tiers.begin_prefetch(SEQUENCE, world.tree.root, TOKENS)
    world.end_all()
    assert world.num_on_host() == 3


def test_a_damaged_file_is_a_miss_and_is_deleted() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH, num_disk=8)
    keys = tuple(world.tree.prefix_keys_after(world.tree.root, TOKENS))
    world.tiers.note_on_disk(keys, 1)
    world.tiers.begin_prefetch(SEQUENCE, world.tree.root, TOKENS)
    (find,) = world.take(DiskFind)
    world.tiers.end(CopyEnd(find.copy_id, 3))
    (read,) = world.take(DiskRead)
    world.tiers.end(CopyEnd(read.copy_id, 1, CopyFailure.DAMAGED))
    assert world.num_on_host() == 1
    assert world.take(DiskDelete) == [DiskDelete(keys[1:])]
    world.tiers.check()
    statistics = world.tiers.statistics()
    assert statistics.disk is not None
    assert (statistics.disk.held, statistics.host.held) == (1, 1)


def test_the_disk_has_a_budget() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH, num_disk=2)
    keys = tuple(world.tree.prefix_keys_after(world.tree.root, TOKENS))
    world.tiers.note_on_disk(keys, 1)
    assert world.take(DiskDelete) == [DiskDelete((keys[0],))]


def test_a_full_disk_is_no_disk() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH, num_disk=8)
    world.compute()
    (offload,) = world.take(Offload)
    world.tiers.end(CopyEnd(offload.copy_id, 3))
    (write,) = world.take(DiskWrite)
    world.tiers.end(CopyEnd(write.copy_id, 1, CopyFailure.FULL))
    world.tiers.check()
    statistics = world.tiers.statistics()
    assert statistics.disk is not None
    assert (statistics.disk.held, statistics.disk.free) == (1, 7)
    assert world.num_on_host() == 3


def test_what_is_suspect_is_forgotten_also_on_its_way() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH, num_disk=8)
    node = world.compute()
    world.end_all()
    other = array("I", [*range(9), 70, 71, 72, 73])
    holder = world.holder()
    world.tree.evict(1)
    match = world.tree.match(other, 2)
    block_ids: list[BlockId] = world.pool.try_allocate(3 - match.num_blocks, holder) or []
    longer = world.tree.insert(match, other, block_ids, 2)
    world.tiers.note_inserted(match, longer, 2)
    (offload,) = world.take(Offload)
    world.tiers.forget(node)
    assert len(world.take(DiskDelete)[0].keys) == 3
    world.tiers.end(CopyEnd(offload.copy_id, 1))
    assert world.tiers.statistics().host.held == 0
    world.tiers.check()
    assert world.tiers.is_settled


def test_a_cancelled_prefetch_waits_for_nothing() -> None:
    world = World(OffloadPolicy.WRITE_THROUGH, num_disk=8)
    world.tiers.begin_prefetch(SEQUENCE, world.tree.root, TOKENS)
    (find,) = world.take(DiskFind)
    world.tiers.cancel_prefetch(SEQUENCE)
    assert not world.tiers.is_waiting(SEQUENCE)
    world.tiers.end(CopyEnd(find.copy_id, 3))
    assert world.take(DiskRead) == []
