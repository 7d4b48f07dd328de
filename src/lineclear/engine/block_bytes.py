"""Looks at and fills the bytes of whole blocks of one memory, part by part: what the KV sanitizer works with.

A digest is CRC-32 of a part's rows: it grows with the rows, so sealing a block row by row costs each row once. It is no
defence against anybody who means harm; of a random change it misses one in four billion.
"""

import zlib
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lineclear.base.ids import BlockId
from lineclear.kv.layout import Layout

POISON_BYTE = 0x7B
"""What free blocks are filled with: 1.3e36 in fp32 and bf16, so large that what reads it is soon infinite, and finite,
so that a weight of 0 still makes 0 of it."""

Digests = tuple[int, ...]
"""One for each part, in the layout's order."""


class BlockBytes:
    """The blocks of one memory.

    Args:
        flat: its bytes, on any device; on CUDA what is looked at is copied to the CPU.
        layout: where its parts are.
    """

    def __init__(self, flat: Tensor, layout: Layout) -> None:
        self._layout = layout
        self._parts: list[Tensor] = []
        for part, offset in zip(layout.shape, layout.offsets, strict=False):
            num_bytes = part.row_bytes * layout.num_slots
            self._parts.append(flat[offset : offset + num_bytes].view(layout.num_blocks, -1))
        is_here = flat.device.type == "cpu"
        self._arrays: list[npt.NDArray[np.uint8]] | None = [part.numpy() for part in self._parts] if is_here else None
        self._empty = (0,) * len(self._parts)
        self._row_bytes = [part.row_bytes for part in layout.shape]

    @property
    def num_rows(self) -> int:
        """Rows of a block."""
        return self._layout.block_size

    def digests(self, block_id: BlockId, start: int, end: int, seeds: Digests | None = None) -> Digests:
        """Digest rows [start, end) of every part; with `seeds`, those of [0, start), the result is that of [0, end)."""
        return tuple(
            zlib.crc32(self._bytes(idx, block_id, start * size, end * size), seed)
            for idx, (size, seed) in enumerate(zip(self._row_bytes, seeds or self._empty, strict=True))
        )

    def fill(self, block_id: BlockId) -> None:
        """Fill a block with poison."""
        if self._arrays is not None:
            for array in self._arrays:
                array[block_id] = POISON_BYTE
        else:
            for part in self._parts:
                part[block_id].fill_(POISON_BYTE)

    def poison_digests(self) -> Digests:
        """Those of a block that is filled with poison."""
        return tuple(_digest_of_poison(size * self.num_rows) for size in self._row_bytes)

    def differing(self, found: Digests, expected: Digests) -> tuple[tuple[int, str], ...]:
        """Layer and part of those digests that differ."""
        pairs = zip(self._layout.shape, found, expected, strict=True)
        return tuple((shape.layer, shape.part) for shape, one, other in pairs if one != other)

    def _bytes(self, part_idx: int, block_id: BlockId, start: int, end: int) -> bytes:
        """A view of some bytes of a block, or on CUDA a copy."""
        if self._arrays is not None:
            return cast("Any", self._arrays[part_idx][block_id, start:end])  # numpy's stubs hide that it is a buffer
        return cast("Any", self._parts[part_idx][block_id, start:end].cpu().numpy())


@cache
def _digest_of_poison(num_bytes: int) -> int:
    return zlib.crc32(bytes((POISON_BYTE,)) * num_bytes)
