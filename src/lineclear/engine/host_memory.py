"""The host tier's memory: one registered region with the layout of the KV store, for other numbers of blocks.

On the CPU it is memory like any other; beside a CUDA device it is pinned, so that copies run beside the computation.
"""

from typing import Final

import torch

from lineclear.base.ids import BlockId
from lineclear.kv.layout import Layout


class HostMemory:
    """Blocks in host memory, all parts of each."""

    def __init__(self, layout: Layout, *, is_pinned: bool) -> None:
        self.layout: Final = layout
        self.flat: Final = torch.zeros(layout.num_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        self._buffer = memoryview(self.flat.numpy()).cast("B")

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
