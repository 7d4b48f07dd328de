"""The host tier's memory: one registered region with the layout of the KV store, for other numbers of blocks.

On the CPU it is memory like any other; beside a CUDA device it is pinned, so that copies run beside the computation.
"""

from typing import Any, Final, cast

import torch
from torch import Tensor

from lineclear.base.ids import BlockId
from lineclear.kv.layout import Layout


def bytes_of(flat: Tensor) -> memoryview:
    """The bytes of a tensor of bytes on the CPU, not a copy of them."""
    return memoryview(cast("Any", flat.numpy())).cast("B")  # numpy's stubs hide that an array is a buffer


class HostMemory:
    """Blocks in host memory, all parts of each."""

    def __init__(self, layout: Layout, *, is_pinned: bool) -> None:
        self.layout: Final = layout
        self.flat: Final = torch.zeros(layout.num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        self._buffer = bytes_of(self.flat)

    @property
    def buffer(self) -> memoryview:
        """The region's bytes."""
        return self._buffer

    def block(self, block_id: BlockId) -> list[memoryview]:
        """A block's bytes, part after part; whoever writes them holds the block."""
        views: list[memoryview] = []
        for part, offset in zip(self.layout.shape, self.layout.offsets, strict=False):
            size = part.row_bytes * self.layout.block_size
            start = offset + block_id * size
            views.append(self._buffer[start : start + size])
        return views
