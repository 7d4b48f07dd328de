"""Where the KV of a token lies in a flat memory, in bytes: what a transfer between two workers is made of.

A memory holds one part of one layer after the other, each as rows in the order of the slots (slot =
block * block_size + offset in the block). Two workers whose layouts have the same `shape` may have different numbers of
blocks: rows are equal, their places are not. A rank that shares the layers with others has only some of the parts.

    memory   │ part 0: row of slot 0, slot 1, … │ part 1: row of slot 0, slot 1, … │ …
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId

ALIGNMENT = 64
"""Parts begin at multiples of it: a cache line."""


class PartShape(NamedTuple):
    """One part of one layer."""

    layer: int
    part: str
    row_bytes: int


class Extent(NamedTuple):
    """A run of bytes to copy from one memory to another."""

    source: int
    destination: int
    num_bytes: int


@dataclass(frozen=True)
class Layout:
    """The places of all rows of one memory."""

    shape: tuple[PartShape, ...]
    num_blocks: int
    block_size: int

    @property
    def num_slots(self) -> int:
        """Tokens that there is room for."""
        return self.num_blocks * self.block_size

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each part begins."""
        offsets = [0]
        for part in self.shape:
            offsets.append(offsets[-1] + -(-part.row_bytes * self.num_slots // ALIGNMENT) * ALIGNMENT)
        return tuple(offsets)

    @cached_property
    def offset_by_part(self) -> dict[PartShape, int]:
        """Where each part begins, by part."""
        return dict(zip(self.shape, self.offsets, strict=False))

    @property
    def num_bytes(self) -> int:
        """Size of the memory."""
        return self.offsets[-1]

    @property
    def block_bytes(self) -> int:
        """Size of one block, all parts of it."""
        return sum(part.row_bytes for part in self.shape) * self.block_size

    def with_num_blocks(self, num_blocks: int) -> "Layout":
        """The layout of another worker's memory of the same shape."""
        return Layout(self.shape, num_blocks, self.block_size)


def extents(
    source: Layout,
    destination: Layout,
    source_block_ids: Sequence[BlockId],
    destination_block_ids: Sequence[BlockId],
    start: int,
    end: int,
    parts: Sequence[PartShape] | None = None,
) -> list[Extent]:
    """What to copy so that tokens [start, end) of a prompt arrive: as few runs as the blocks allow.

    Both lists are the blocks of the prompt from its first token on that is in either: block i holds tokens
    [i * block_size, (i + 1) * block_size). `parts` are those to copy, all of the source without.

    Raises: InvariantError if a part or a token is not in both memories, or their blocks differ in size.
    """
    parts = source.shape if parts is None else parts
    from_starts, to_starts = source.offset_by_part, destination.offset_by_part
    if source.block_size != destination.block_size or not from_starts.keys() & to_starts.keys() >= set(parts):
        raise InvariantError("the memories of a transfer have different shapes")
    runs = list(_runs(source.block_size, source_block_ids, destination_block_ids, start, end))
    return [
        Extent(from_starts[part] + run.source * size, to_starts[part] + run.destination * size, run.num_bytes * size)
        for part in parts
        for size in (part.row_bytes,)
        for run in runs
        if run.num_bytes
    ]


def _runs(
    block_size: int, source: Sequence[BlockId], destination: Sequence[BlockId], start: int, end: int
) -> Iterable[Extent]:
    """Runs of slots, in slots: neighbours in both memories are one."""
    if not 0 <= start < end <= min(len(source), len(destination)) * block_size:
        raise InvariantError(f"tokens [{start}, {end}) are not in {len(source)} and {len(destination)} blocks")
    first, last = start // block_size, (end - 1) // block_size
    breaks = [first]
    breaks += [
        idx
        for idx in range(first + 1, last + 1)
        if source[idx] != source[idx - 1] + 1 or destination[idx] != destination[idx - 1] + 1
    ]
    for begin, stop in pairwise([*breaks, last + 1]):
        skip = max(start - begin * block_size, 0)
        num_slots = min(end, stop * block_size) - begin * block_size - skip
        yield Extent(source[begin] * block_size + skip, destination[begin] * block_size + skip, num_slots)
