"""Memory that operations reuse from call to call.

Fresh megabytes cost page faults each time; a buffer that stays is also still in the core's cache. Contents are
undefined, and a buffer is taken again only when its last use has ended: one pass of a model runs at a time.
"""

import math

import numpy as np
import torch
from torch import Tensor

MAX_VIEWS = 256
"""Shapes remembered: enough for those that decode steps repeat."""


class Workspace:
    """Buffers by name, each as large as the largest taken so far."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}
        self._views: dict[tuple[str, torch.dtype, tuple[int, ...]], Tensor] = {}
        self._arrays: dict[tuple[str, torch.dtype, tuple[int, ...]], np.ndarray] = {}

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        """A tensor of this shape in the buffer of this name."""
        key = (name, dtype, shape)
        view = self._views.get(key)
        if view is None:
            view = self._buffer(name, dtype, math.prod(shape)).view(shape)
            self._views[key] = view
        return view

    def take_array(self, name: str, dtype: torch.dtype, *shape: int) -> np.ndarray:
        """What `take` gives, as an array."""
        key = (name, dtype, shape)
        array = self._arrays.get(key)
        if array is None:
            array = self.take(name, dtype, *shape).numpy()
            self._arrays[key] = array
        return array

    def _buffer(self, name: str, dtype: torch.dtype, size: int) -> Tensor:
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(size, dtype=dtype)
            self._buffers[name, dtype] = buffer
            self._forget_views()
        elif len(self._views) >= MAX_VIEWS:
            self._forget_views()
        return buffer[:size]

    def _forget_views(self) -> None:
        self._views.clear()
        self._arrays.clear()

    @property
    def size_bytes(self) -> int:
        """Memory of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())
