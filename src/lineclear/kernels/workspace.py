"""Memory that operations reuse from call to call.

Fresh megabytes cost page faults each time; a buffer that stays is also still in the core's cache. Contents are
undefined, and a buffer is taken again only when its last use has ended: one pass of a model runs at a time.
"""

import math

import torch
from torch import Tensor


class Workspace:
    """Buffers by name, as large as the largest taken so far."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        """A tensor of this shape in the buffer of this name."""
        size = math.prod(shape)
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)

    @property
    def size_bytes(self) -> int:
        """Memory of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())
