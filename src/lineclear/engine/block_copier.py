"""Copies blocks between a KV store and host memory, one part of one layer at a time.

The store makes it and nobody else has its tensor: what a pass may read it still gets from `KvStore.read` alone.
Neighbouring blocks are one copy.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId
from lineclear.engine.copying import Runs, copy_runs
from lineclear.engine.host_memory import HostMemory
from lineclear.kv.layout import Layout


class BlockCopier(Protocol):
    """Between one store and one host memory. `part_idx` counts the layout's parts; runs are in blocks."""

    def load(self, part_idx: int, runs: Runs) -> None:
        """Copy runs of blocks from host memory to the store, or enqueue that on the current stream."""
        ...

    def offload(self, part_idx: int, runs: Runs) -> None:
        """Copy runs of blocks from the store to host memory, or enqueue that on the current stream."""
        ...


def block_runs(sources: Sequence[BlockId], destinations: Sequence[BlockId]) -> Runs:
    """Join pairs of blocks that are neighbours at both ends: rows of source, destination, number of blocks."""
    pairs = np.array([sources, destinations], dtype=np.int64).T
    is_first = np.ones(len(pairs), dtype=np.bool_)
    is_first[1:] = (np.diff(pairs, axis=0) != 1).any(axis=1)
    firsts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(firsts, len(pairs)))
    return np.column_stack([pairs[firsts], lengths])


class CpuBlockCopier:
    """Between two memories of the CPU; whoever calls it is the stream."""

    def __init__(self, device: memoryview, device_layout: Layout, host: HostMemory) -> None:
        _require_same_shape(device_layout, host.layout)
        self._device = device
        self._device_offsets = device_layout.offsets
        self._host = host.buffer
        self._host_offsets = host.layout.offsets
        self._block_bytes = [part.row_bytes * device_layout.block_size for part in device_layout.shape]

    def load(self, part_idx: int, runs: Runs) -> None:
        """Copy at once."""
        offsets = (self._host_offsets[part_idx], self._device_offsets[part_idx], 0)
        copy_runs(self._host, self._device, runs * self._block_bytes[part_idx] + offsets, _never)

    def offload(self, part_idx: int, runs: Runs) -> None:
        """Copy at once."""
        offsets = (self._device_offsets[part_idx], self._host_offsets[part_idx], 0)
        copy_runs(self._device, self._host, runs * self._block_bytes[part_idx] + offsets, _never)


class CudaBlockCopier:
    """Between a CUDA device and pinned host memory, on the current stream."""

    def __init__(self, device: Tensor, device_layout: Layout, host: HostMemory) -> None:
        _require_same_shape(device_layout, host.layout)
        self._device = _parts(device, device_layout)
        self._host = _parts(host.flat, host.layout)

    def load(self, part_idx: int, runs: Runs) -> None:
        """Enqueue the copies."""
        _enqueue(self._host[part_idx], self._device[part_idx], runs)

    def offload(self, part_idx: int, runs: Runs) -> None:
        """Enqueue the copies."""
        _enqueue(self._device[part_idx], self._host[part_idx], runs)


def _enqueue(source: Tensor, destination: Tensor, runs: Runs) -> None:
    for start, to, num_blocks in runs.tolist():
        destination[to : to + num_blocks].copy_(source[start : start + num_blocks], non_blocking=True)


def _parts(flat: Tensor, layout: Layout) -> list[Tensor]:
    """Each part as [num_blocks, bytes of a block]."""
    parts: list[Tensor] = []
    for part, offset in zip(layout.shape, layout.offsets, strict=False):
        num_bytes = part.row_bytes * layout.num_slots
        parts.append(flat[offset : offset + num_bytes].view(layout.num_blocks, -1))
    return parts


def _require_same_shape(device: Layout, host: Layout) -> None:
    if device.shape != host.shape or device.block_size != host.block_size:
        raise InvariantError("device and host memory have different layouts")


def _never() -> bool:
    return False
