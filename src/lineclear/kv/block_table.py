"""A sequence's blocks in the order of its tokens, packed so that a copy of a long one costs microseconds."""

from array import array
from collections.abc import Iterable, Iterator
from typing import cast

from lineclear.base.ids import BlockId


class BlockTable:
    """Maps a sequence's positions to blocks: position p is in block `table[p // block_size]`."""

    __slots__ = ("_block_ids",)

    def __init__(self, block_ids: Iterable[BlockId] = ()) -> None:
        self._block_ids = array("q", block_ids)

    def __len__(self) -> int:
        return len(self._block_ids)

    def __getitem__(self, index: int) -> BlockId:
        return cast("BlockId", self._block_ids[index])

    def __setitem__(self, index: int, block_id: BlockId) -> None:
        self._block_ids[index] = block_id

    def __iter__(self) -> Iterator[BlockId]:
        return cast("Iterator[BlockId]", iter(self._block_ids))

    def __repr__(self) -> str:
        return f"BlockTable({list(self._block_ids)})"

    def span(self, start: int, end: int) -> list[BlockId]:
        """Return the blocks [start, end) of the table."""
        return cast("list[BlockId]", self._block_ids[start:end].tolist())

    def packed(self, num_blocks: int | None = None) -> "array[int]":
        """Copy the first `num_blocks` (or all) ids into a fresh buffer of signed 64-bit integers.

        Owns: the caller; `torch.frombuffer` and `numpy.frombuffer` may take it without another copy.
        """
        return self._block_ids[:num_blocks]

    def extend(self, block_ids: Iterable[BlockId]) -> None:
        """Append blocks."""
        self._block_ids.extend(block_ids)

    def cut(self, num_blocks: int) -> list[BlockId]:
        """Keep the first `num_blocks` and return the others."""
        removed = self.span(num_blocks, len(self))
        del self._block_ids[num_blocks:]
        return removed
