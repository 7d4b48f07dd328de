"""Blocks travel with all their parts, and a pass waits for exactly what it reads."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from lineclear.base.ids import BlockId
from lineclear.bundled import checkpoint_path
from lineclear.engine.bell import wait_readable
from lineclear.engine.block_copier import block_runs
from lineclear.engine.host_memory import HostMemory
from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.store import KvStore
from lineclear.engine.tier_copies import TierCopies, open_streams
from lineclear.kv.copies import CopyEnd, CopyFailure, CopyId, Load, Offload
from lineclear.model.config import load_config

BLOCK_SIZE = 4
DEVICES = [
    pytest.param("cpu", id="cpu"),
    pytest.param(
        "cuda",
        id="cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


def ids(*numbers: int) -> tuple[BlockId, ...]:
    return tuple(BlockId(number) for number in numbers)


def test_neighbours_are_one_run() -> None:
    assert block_runs(ids(3, 4, 5, 9, 2), ids(0, 1, 2, 3, 5)).tolist() == [[3, 0, 3], [9, 3, 1], [2, 5, 1]]


class World:
    """A store whose rows say where they were written, and host memory for four blocks."""

    def __init__(self, device: str, before_step: Callable[[], None] | None = None) -> None:
        config = load_config(checkpoint_path())
        self.store = KvStore(config, 6, BLOCK_SIZE, device=torch.device(device), dtype=torch.float32)
        self.host = HostMemory(self.store.layout.with_num_blocks(4), is_pinned=device == "cuda")
        self.copies = TierCopies(self.store, self.host, open_streams(self.store, before_step), None)

    def fill(self, block_id: int, value: float) -> None:
        slots = torch.arange(block_id * BLOCK_SIZE, (block_id + 1) * BLOCK_SIZE, device=self.store.device)
        for number, (layer, part) in enumerate(self.store.parts):
            width = self.store.read(layer, part, AlwaysReady()).shape[1]
            values = torch.full((BLOCK_SIZE, width), value + number, device=self.store.device)
            self.store.write(layer, part, slots, values)

    def values(self, block_id: int) -> list[float]:
        """The block's value, from each part; it must be the same in all its rows."""
        found: list[float] = []
        for number, (layer, part) in enumerate(self.store.parts):
            rows = self.store.read(layer, part, AlwaysReady())[block_id * BLOCK_SIZE : (block_id + 1) * BLOCK_SIZE]
            assert bool((rows == rows[0, 0]).all())
            found.append(float(rows[0, 0]) - number)
        return found

    def end(self) -> CopyEnd:
        while True:
            wait_readable(self.copies.filenos())
            ends = self.copies.poll()
            if ends:
                assert len(ends) == 1
                return ends[0]


@pytest.fixture
def open_world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(device: str = "cpu", before_step: Callable[[], None] | None = None) -> World:
        worlds.append(World(device, before_step))
        return worlds[-1]

    yield make
    for world in worlds:
        world.copies.close()


@pytest.mark.parametrize("device", DEVICES)
def test_all_parts_go_down_and_come_back_elsewhere(open_world: Callable[..., World], device: str) -> None:
    world = open_world(device)
    world.fill(1, 100.0)
    world.fill(5, 500.0)
    world.copies.start([Offload(CopyId(0), ids(1, 5), ids(2, 0))])
    assert world.end() == CopyEnd(CopyId(0), 2)
    for block_id in (1, 5):
        world.fill(block_id, -1.0)
    world.copies.start([Load(CopyId(1), ids(0, 2), ids(3, 4))])
    readiness = world.copies.readiness([CopyId(1)])
    for layer, part in world.store.parts:
        world.store.read(layer, part, readiness)
    assert world.values(3) == [500.0] * len(world.store.parts)
    assert world.values(4) == [100.0] * len(world.store.parts)
    assert world.copies.settle([CopyId(1)]) == [CopyEnd(CopyId(1), 2)]
    assert world.copies.is_idle
    statistics = world.copies.statistics()
    layout = world.store.layout
    assert statistics.load_bytes == statistics.offload_bytes == 2 * layout.num_bytes // layout.num_blocks


def test_a_pass_waits_for_a_part_when_it_reads_it_and_not_before(open_world: Callable[..., World]) -> None:
    """The index of a layer comes before its latent, and a layer before the next."""
    permits = threading.Semaphore(0)
    world = open_world(before_step=permits.acquire)
    world.copies.start([Load(CopyId(0), ids(0), ids(3))])
    readiness = world.copies.readiness([CopyId(0)])
    permits.release(2)
    readiness.wait(0, "index")
    readiness.wait(0, "latent")
    late = threading.Thread(target=readiness.wait, args=(1, "index"))
    late.start()
    late.join(0.02)
    assert late.is_alive()
    permits.release(len(world.store.parts))
    late.join()
    assert world.copies.statistics().num_waits >= 1
    assert world.copies.settle([CopyId(0)])[0].failure is None


def test_a_copy_that_fails_says_so(open_world: Callable[..., World]) -> None:
    num_left = 3

    def fail_at_the_third() -> None:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            raise OSError("no")

    world = open_world(before_step=fail_at_the_third)
    world.copies.start([Load(CopyId(0), ids(0), ids(3))])
    readiness = world.copies.readiness([CopyId(0)])
    for layer, part in world.store.parts:
        readiness.wait(layer, part)
    assert world.copies.settle([CopyId(0)]) == [CopyEnd(CopyId(0), 0, CopyFailure.COPY)]


def test_without_loads_there_is_nothing_to_wait_for(open_world: Callable[..., World]) -> None:
    assert isinstance(open_world().copies.readiness([]), AlwaysReady)
