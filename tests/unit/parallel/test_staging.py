"""A buffer is filled when nobody reads it, in the order in which parts are read; whoever breaks that hears of it."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from lineclear.base.errors import InvariantError, RankError
from lineclear.parallel.meter import Meter
from lineclear.parallel.planning.staging import Depths, choose_depths
from lineclear.parallel.staging import Item, Staging, carve


@dataclass
class Given:
    error: RankError | None = None
    num_waits: int = 0

    def wait(self) -> None:
        self.num_waits += 1
        if self.error is not None:
            raise self.error


@dataclass
class Desk:
    """Notes what is begun, and into which buffer."""

    begun: list[tuple[int, str, int]] = field(default_factory=list)
    pending: list[Given] = field(default_factory=list)

    def __call__(self, item: Item, buffer: Tensor, error: RankError | None) -> Given:
        self.begun.append((item.layer, item.part, int(buffer[0, 0])))
        self.pending.append(Given(error))
        return self.pending[-1]


def staging(schedule: list[Item], num_latent: int = 1, num_index: int = 1) -> tuple[Staging, Desk]:
    desk = Desk()
    latent = [torch.full((1, 1), 100 + idx) for idx in range(num_latent)]
    index = [torch.full((1, 1), 200 + idx) for idx in range(num_index)]
    return Staging(schedule, {"latent": latent, "index": index}, desk, Meter()), desk


TWO_LAYERS = [Item(0, "index", 1), Item(0, "latent", 1), Item(1, "index", 1), Item(1, "latent", 1)]


def test_with_one_buffer_a_part_comes_when_the_one_before_is_released() -> None:
    buffers, desk = staging(TWO_LAYERS)
    buffers.advance()
    assert desk.begun == [(0, "index", 200), (0, "latent", 100)]
    with pytest.raises(InvariantError, match="the latent part of layer 1 is not in staging"):
        buffers.wait(1, "latent")
    assert buffers.wait(0, "index") == 200
    buffers.release(0, "index")
    buffers.advance()
    assert desk.begun[2:] == [(1, "index", 200)]
    assert buffers.wait(0, "latent") == 100
    buffers.release(0, "latent")
    buffers.advance()
    assert desk.begun[3:] == [(1, "latent", 100)]
    buffers.require_begun()


def test_with_two_buffers_it_comes_while_the_one_before_is_read() -> None:
    buffers, desk = staging([Item(layer, "latent", 1) for layer in range(4)], num_latent=2)
    buffers.advance()
    assert desk.begun == [(0, "latent", 100), (1, "latent", 101)]
    buffers.wait(0, "latent")
    buffers.release(0, "latent")
    buffers.advance()
    assert desk.begun[2:] == [(2, "latent", 100)]


def test_no_part_overtakes_one_that_is_read_before_it() -> None:
    buffers, desk = staging(TWO_LAYERS, num_latent=2)
    buffers.advance()
    assert desk.begun == [(0, "index", 200), (0, "latent", 100)]


def test_what_has_no_blocks_is_not_sent() -> None:
    buffers, desk = staging([Item(0, "index", 0), Item(0, "latent", 1)])
    buffers.advance()
    assert desk.begun == [(0, "latent", 100)]
    assert buffers.wait(0, "index") == 200


def test_a_buffer_is_not_released_before_its_content_was_there() -> None:
    buffers, _ = staging(TWO_LAYERS)
    buffers.advance()
    with pytest.raises(InvariantError, match="the index part of layer 0 was released before it was there"):
        buffers.release(0, "index")


def test_a_part_is_waited_for_once_and_released_once() -> None:
    buffers, desk = staging(TWO_LAYERS)
    buffers.advance()
    buffers.wait(0, "index")
    buffers.wait(0, "index")
    assert desk.pending[0].num_waits == 1
    buffers.release(0, "index")
    with pytest.raises(InvariantError, match="not in staging"):
        buffers.release(0, "index")


def test_a_failed_pass_begins_what_is_left_and_leaves_nothing_on_its_way() -> None:
    buffers, desk = staging([*TWO_LAYERS, Item(2, "latent", 0)])
    buffers.advance()
    failure = RankError(1, "its pass has failed")
    buffers.fail_rest(failure)
    assert [each[:2] for each in desk.begun] == [(item.layer, item.part) for item in TWO_LAYERS]
    assert [each.error for each in desk.pending] == [None, None, failure, failure]
    buffers.wait_all()
    assert all(each.num_waits == 1 for each in desk.pending)


def test_a_schedule_that_did_not_come_to_its_end_is_noticed() -> None:
    buffers, _ = staging(TWO_LAYERS)
    buffers.advance()
    with pytest.raises(InvariantError, match="no buffer became free for"):
        buffers.require_begun()


def test_buffers_lie_side_by_side_in_staging() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    buffers = carve(memory, torch.empty(0), 5, {"latent": 7, "index": 3}, Depths(2, 2))
    for number, buffer in enumerate([*buffers["latent"], *buffers["index"]], start=1):
        assert buffer.shape == (5, 7 if number <= 2 else 3)
        assert buffer.data_ptr() % 64 == memory.data_ptr() % 64
        buffer.fill_(number)
    for number, buffer in enumerate([*buffers["latent"], *buffers["index"]], start=1):
        assert buffer.unique().tolist() == [number]


@pytest.mark.parametrize(
    ("memory_bytes", "expected"),
    [(319, None), (320, Depths(1, 1)), (511, Depths(1, 1)), (512, Depths(2, 1)), (640, Depths(2, 2))],
)
def test_as_many_buffers_as_fit(memory_bytes: int, expected: Depths | None) -> None:
    assert choose_depths(memory_bytes, 3, 50, 30) == expected
