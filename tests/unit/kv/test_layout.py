"""A transfer copies exactly the rows of its tokens, in as few runs as the blocks allow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.errors import InvariantError
from lineclear.kv.layout import Extent, Layout, PartShape, extents

SHAPE = (PartShape(0, "latent", 5), PartShape(0, "index", 3), PartShape(1, "latent", 5))
BLOCK_SIZE = 4


def memory(layout: Layout, fill: int) -> bytearray:
    return bytearray([fill]) * layout.num_bytes


def row(layout: Layout, part_idx: int, block_id: int, offset: int) -> slice:
    start = layout.offsets[part_idx] + (block_id * BLOCK_SIZE + offset) * layout.shape[part_idx].row_bytes
    return slice(start, start + layout.shape[part_idx].row_bytes)


@given(st.data())
def test_exactly_the_rows_of_the_tokens_arrive(data: st.DataObject) -> None:
    source, destination = (Layout(SHAPE, data.draw(st.integers(4, 9)), BLOCK_SIZE) for _ in range(2))
    num_blocks = data.draw(st.integers(1, 4))
    from_blocks, to_blocks = (
        data.draw(st.permutations(range(layout.num_blocks)))[:num_blocks] for layout in (source, destination)
    )
    start = data.draw(st.integers(0, num_blocks * BLOCK_SIZE - 1))
    end = data.draw(st.integers(start + 1, num_blocks * BLOCK_SIZE))
    before = bytes(range(1, 250)) * (source.num_bytes // 249 + 1)
    after = memory(destination, 0)
    for extent in extents(source, destination, from_blocks, to_blocks, start, end):
        after[extent.destination : extent.destination + extent.num_bytes] = before[
            extent.source : extent.source + extent.num_bytes
        ]
    expected = memory(destination, 0)
    for part_idx in range(len(SHAPE)):
        for token in range(start, end):
            block, offset = divmod(token, BLOCK_SIZE)
            expected[row(destination, part_idx, to_blocks[block], offset)] = before[
                row(source, part_idx, from_blocks[block], offset)
            ]
    assert after == expected


def test_neighbours_in_both_memories_are_one_run() -> None:
    layout = Layout(SHAPE[:1], 8, BLOCK_SIZE)
    assert extents(layout, layout, [0, 1, 2, 5], [3, 4, 5, 6], 2, 15) == [Extent(10, 70, 50), Extent(100, 120, 15)]
    assert extents(layout, layout, [0, 1, 2], [2, 1, 0], 0, 12) == [
        Extent(0, 40, 20), Extent(20, 20, 20), Extent(40, 0, 20),
    ]  # fmt: skip


def test_parts_begin_at_cache_lines_and_do_not_overlap() -> None:
    layout = Layout(SHAPE, 3, BLOCK_SIZE)
    assert layout.offsets == (0, 64, 128, 192)
    assert layout.num_bytes == 192
    assert layout.with_num_blocks(30).offsets == (0, 640, 1024, 1664)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (3, 2), (0, 9), (-1, 3)])
def test_tokens_outside_the_blocks_are_refused(start: int, end: int) -> None:
    layout = Layout(SHAPE, 3, BLOCK_SIZE)
    with pytest.raises(InvariantError, match="are not in 2 and 2 blocks"):
        extents(layout, layout, [0, 1], [1, 2], start, end)


def test_different_shapes_are_refused() -> None:
    with pytest.raises(InvariantError, match="different shapes"):
        extents(Layout(SHAPE, 3, 4), Layout(SHAPE[:2], 3, 4), [0], [0], 0, 1)
