"""The sanitizer on a small memory: what it reports, of whom, and that it reports nothing else."""

import random

import pytest
import torch

from lineclear.base.ids import BlockId, SequenceId
from lineclear.engine.block_bytes import POISON_BYTE, BlockBytes
from lineclear.engine.sanitizer import SAMPLE, KvSanitizer
from lineclear.kv.kv_fault import KvFault, KvFaultKind
from lineclear.kv.layout import Layout, PartShape
from lineclear.kv.pool import BlockPool, Holder, HolderKind

LAYOUT = Layout((PartShape(0, "latent", 12), PartShape(0, "index", 4), PartShape(1, "latent", 12)), 8, 4)
OLD, NEW = Holder(HolderKind.SEQUENCE, 1), Holder(HolderKind.SEQUENCE, 2)
LATE = Holder(HolderKind.WRITER, 500)


class World:
    """A memory, its pool and what watches it; writes are those of nobody."""

    def __init__(self, *, is_full: bool = True) -> None:
        self.flat = torch.zeros(LAYOUT.num_bytes, dtype=torch.uint8)
        self.host_flat = torch.zeros(LAYOUT.num_bytes, dtype=torch.uint8)
        host = BlockBytes(self.host_flat, LAYOUT)
        self.sanitizer = KvSanitizer(BlockBytes(self.flat, LAYOUT), host, is_full=is_full)
        self.pool = BlockPool(LAYOUT.num_blocks, self.sanitizer)

    def write(self, block_id: int, row: int, part_idx: int, value: int, *, on_host: bool = False) -> None:
        flat = self.host_flat if on_host else self.flat
        size = LAYOUT.shape[part_idx].row_bytes
        flat[LAYOUT.offsets[part_idx] + (block_id * LAYOUT.block_size + row) * size] = value

    def take(self, count: int, holder: Holder) -> list[BlockId]:
        return self.pool.try_allocate(count, holder) or []

    @property
    def faults(self) -> list[KvFault]:
        return list(self.sanitizer.faults)


def test_a_late_write_into_a_free_block_is_found_when_the_block_is_given_away() -> None:
    world = World()
    block_ids = world.take(8, LATE)
    world.pool.note_writer(LATE, SequenceId(1))
    world.pool.release(block_ids, LATE)
    assert int(world.flat[LAYOUT.offsets[1]]) == POISON_BYTE
    world.write(5, 2, 1, 9)
    world.take(8, NEW)
    (fault,) = world.faults
    assert (fault.kind, fault.block_id, fault.parts) == (KvFaultKind.WRITE_AFTER_FREE, 5, ((0, "index"),))
    assert fault.owners == ("sequence 2",)
    assert fault.previous_owners == ("writer 500 for sequence 1",)


def test_a_late_write_into_a_free_block_is_found_by_the_sweep_as_well_and_told_once() -> None:
    world = World()
    world.pool.release(world.take(8, OLD), OLD)
    world.write(3, 0, 2, 1)
    world.sanitizer.sweep_all()
    (fault,) = world.faults
    assert (fault.found_by, fault.owners, fault.previous_owners) == ("sweep", (), ("sequence 1",))
    world.sanitizer.sweep_all()
    world.take(8, NEW)
    assert len(world.faults) == 1


def test_a_late_write_into_a_sealed_block_names_its_former_owner() -> None:
    world = World()
    world.pool.release(world.take(8, OLD), OLD)
    block_id = world.take(8, NEW)[4]
    world.sanitizer.seal(block_id, 0, 4)
    world.write(block_id, 3, 0, 200)
    assert not world.sanitizer.verify(block_id, "pass")
    (fault,) = world.faults
    assert (fault.kind, fault.parts) == (KvFaultKind.WRITE_AFTER_SEAL, ((0, "latent"),))
    assert (fault.owners, fault.previous_owners) == (("sequence 2",), ("sequence 1",))
    assert world.sanitizer.take_suspects() == ([block_id], [])
    assert world.sanitizer.take_suspects() == ([], [])


def test_rows_at_and_past_the_newest_token_may_change() -> None:
    world = World()
    (block_id,) = world.take(1, NEW)
    world.sanitizer.seal(block_id, 0, 2)
    world.write(block_id, 2, 0, 1)
    assert world.sanitizer.verify(block_id, "pass")
    world.sanitizer.seal(block_id, 2, 3)
    world.write(block_id, 3, 1, 1)
    assert world.sanitizer.verify(block_id, "pass")
    world.write(block_id, 2, 0, 2)
    assert not world.sanitizer.verify(block_id, "pass")


def test_damage_before_more_rows_are_sealed_is_not_sealed_in() -> None:
    world = World()
    (block_id,) = world.take(1, NEW)
    world.sanitizer.seal(block_id, 0, 2)
    world.write(block_id, 1, 0, 1)
    world.sanitizer.seal(block_id, 2, 4)
    assert not world.sanitizer.verify(block_id, "pass")


def test_damage_that_nobody_has_read_is_found_when_the_block_is_freed() -> None:
    world = World()
    (block_id,) = world.take(1, NEW)
    world.sanitizer.seal(block_id, 0, 4)
    world.write(block_id, 0, 2, 1)
    world.pool.release([block_id], NEW)
    assert [fault.found_by for fault in world.faults] == ["free"]


@pytest.mark.parametrize("tier", ["source overwritten", "host overwritten", "load cut short", "none"])
def test_a_block_is_followed_to_the_host_and_back(tier: str) -> None:
    world = World()
    sanitizer = world.sanitizer
    (source,) = world.take(1, OLD)
    world.write(source, 0, 0, 77)
    sanitizer.seal(source, 0, 4)
    seal, owners = sanitizer.source_seal(source), sanitizer.owners(source)
    sanitizer.begin_arrival([BlockId(6)])
    if tier != "source overwritten":
        world.write(6, 0, 0, 77, on_host=True)
    arrived = sanitizer.end_offload(BlockId(6), source, seal, owners)
    assert arrived == (tier != "source overwritten")
    if tier == "source overwritten":
        (fault,) = world.faults
        assert (fault.kind, fault.tier, fault.previous_owners) == (KvFaultKind.COPY_DIFFERS, "host", ("sequence 1",))
        return
    (target,) = world.take(1, NEW)
    sanitizer.begin_load([target])
    if tier == "host overwritten":
        world.write(6, 1, 1, 1, on_host=True)
        world.write(target, 1, 1, 1)
    if tier != "load cut short":
        world.write(target, 0, 0, 77)
    assert sanitizer.end_load([(BlockId(6), target)], is_whole=True) == (tier == "none")
    expected = {
        "host overwritten": [(KvFaultKind.WRITE_AFTER_SEAL, "host", BlockId(6))],
        "load cut short": [(KvFaultKind.COPY_DIFFERS, "device", target)],
        "none": [],
    }[tier]
    assert [(fault.kind, fault.tier, fault.block_id) for fault in world.faults] == expected
    assert sanitizer.take_suspects()[1] == ([BlockId(6)] if tier == "host overwritten" else [])


def test_an_offload_of_a_block_that_nobody_holds_fails_and_is_told() -> None:
    world = World()
    (source,) = world.take(1, OLD)
    world.sanitizer.seal(source, 0, 4)
    world.pool.release([source], OLD)
    assert not world.sanitizer.end_offload(BlockId(0), source, world.sanitizer.source_seal(source), ())
    (fault,) = world.faults
    assert (fault.kind, fault.block_id) == (KvFaultKind.READ_AFTER_FREE, source)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_full", [True, False])
def test_any_clean_life_of_blocks_is_reported_as_clean(seed: int, is_full: bool) -> None:
    world, rng = World(is_full=is_full), random.Random(seed)
    held: dict[BlockId, tuple[Holder, int]] = {}
    for number in range(300):
        if held and rng.random() < 0.3:
            block_id = rng.choice(sorted(held))
            world.pool.release([block_id], held.pop(block_id)[0])
        elif held and rng.random() < 0.7:
            block_id = rng.choice(sorted(held))
            holder, num_rows = held[block_id]
            end = rng.randint(num_rows, LAYOUT.block_size)
            for row in range(num_rows, LAYOUT.block_size):  # what a pass writes, junk beyond its rows included
                world.write(block_id, row, rng.randrange(3), rng.randrange(256))
            world.sanitizer.seal(block_id, num_rows, end)
            held[block_id] = holder, end
        else:
            holder = Holder(HolderKind.SEQUENCE, number)
            held |= dict.fromkeys(world.take(1, holder), (holder, 0))
        world.sanitizer.sweep()
    world.sanitizer.sweep_all()
    assert world.faults == []
    assert world.sanitizer.statistics().num_checks > 100


def test_sample_poisons_one_allocation_in_so_many() -> None:
    world = World(is_full=False)
    for _ in range(SAMPLE):
        world.pool.release(world.take(8, OLD), OLD)
    assert world.sanitizer.statistics().num_poisoned == 8
