"""The KV store: for each layer and part a tensor of slots.

A slot is one token's place, `block_id * block_size + offset`. `read` is the only way to reach a tensor, and it waits
for readiness first (P2); `write` is the only way to change one.

Invariants:
1. No tensor of the store leaves it except through `read`; its `copier` moves whole blocks and gives none out, and its
   `block_bytes` digests and fills them.
2. A layer that is stored has a part exactly if the configuration gives the part a width there.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, cast

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError
from lineclear.engine.block_bytes import BlockBytes
from lineclear.engine.block_copier import BlockCopier, CpuBlockCopier, CudaBlockCopier
from lineclear.engine.host_memory import HostMemory, bytes_of
from lineclear.engine.readiness import Readiness
from lineclear.kv.layout import Layout, PartShape
from lineclear.model.batch import Part
from lineclear.model.config import GlmConfig

PARTS: tuple[Part, ...] = ("latent", "index")


class KvStore:
    """Slots of every layer and part on one device.

    Args:
        config: gives the layers and the width of each part.
        num_blocks: blocks of the pool.
        block_size: tokens of a block.
        device: where the tensors live.
        dtype: element type of all parts.
        memory: zeroed bytes on the CPU that the KV lives in, `kv_layout(...).num_bytes` of them, so that other
            processes can reach it; without it the store takes memory of its own.
        layers: those that are stored; None for all.
    """

    def __init__(
        self,
        config: GlmConfig,
        num_blocks: int,
        block_size: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        memory: memoryview | None = None,
        layers: Collection[int] | None = None,
    ) -> None:
        self.layout: Final = kv_layout(config, num_blocks, block_size, dtype, layers)
        self.device: Final = device
        flat = self._flat = (
            torch.zeros(self.layout.num_bytes, dtype=torch.uint8, device=device)
            if memory is None
            else torch.frombuffer(memory, dtype=torch.uint8)
        )
        self._tensors: dict[tuple[int, Part], Tensor] = {}
        for (layer, part, row_bytes), offset in zip(self.layout.shape, self.layout.offsets, strict=False):
            rows = flat[offset : offset + row_bytes * self.layout.num_slots]
            self._tensors[layer, cast("Part", part)] = rows.view(dtype).view(self.layout.num_slots, -1)

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self.layout.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.layout.block_size

    @property
    def parts(self) -> tuple[tuple[int, Part], ...]:
        """Every layer and part that is stored."""
        return tuple(self._tensors)

    @property
    def size_bytes(self) -> int:
        """Memory of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def write(self, layer: int, part: Part, slot_mapping: Tensor, values: Tensor) -> None:
        """Put one row of values at each slot.

        Shapes: slot_mapping: [T] int64; values: [T, width].
        """
        self._tensor(layer, part).index_copy_(0, slot_mapping, values)

    def read(self, layer: int, part: Part, readiness: Readiness) -> Tensor:
        """Wait until the layer's part is ready, then give its tensor, [num_slots, width]."""
        tensor = self._tensor(layer, part)
        readiness.wait(layer, part)
        return tensor

    def copier(self, host: HostMemory) -> BlockCopier:
        """What moves blocks between this store and host memory of the same layout."""
        if self.device.type == "cuda":
            return CudaBlockCopier(self._flat, self.layout, host)
        return CpuBlockCopier(bytes_of(self._flat), self.layout, host)

    def block_bytes(self) -> BlockBytes:
        """What digests, fills and compares whole blocks of this store."""
        return BlockBytes(self._flat, self.layout)

    def view(self, readiness: Readiness) -> "KvView":
        """The store as one forward pass sees it."""
        return KvView(self, readiness)

    def _tensor(self, layer: int, part: Part) -> Tensor:
        tensor = self._tensors.get((layer, part))
        if tensor is None:
            raise InvariantError(f"layer {layer} has no part {part!r}")
        return tensor


def kv_layout(
    config: GlmConfig, num_blocks: int, block_size: int, dtype: torch.dtype, layers: Collection[int] | None = None
) -> Layout:
    """Where the KV of a model, or of some of its layers, lies in a memory of so many blocks."""
    shape = [
        PartShape(layer, part, width * dtype.itemsize)
        for layer in range(config.num_cache_layers)
        if layers is None or layer in layers
        for part in PARTS
        if (width := config.part_width(layer, part)) is not None
    ]
    return Layout(tuple(shape), num_blocks, block_size)


@dataclass(frozen=True, slots=True)
class KvView:
    """A store bound to one forward pass's readiness; the `KvCache` that the model takes."""

    store: KvStore
    readiness: Readiness

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.store.block_size

    def write(self, layer: int, part: Part, slot_mapping: Tensor, values: Tensor) -> None:
        """Put one row of values at each slot."""
        self.store.write(layer, part, slot_mapping, values)

    def read(self, layer: int, part: Part) -> Tensor:
        """Wait for this pass's readiness, then give the part's tensor."""
        return self.store.read(layer, part, self.readiness)
