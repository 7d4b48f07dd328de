"""The KV store: for each layer and part a tensor of slots.

A slot is one token's place, `block_id * block_size + offset`. `read` is the only way to reach a tensor, and it waits
for readiness first (P2); `write` is the only way to change one.

Invariants:
1. No tensor of the store leaves it except through `read`.
2. A layer has a part exactly if the configuration gives the part a width there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError
from lineclear.engine.readiness import Readiness
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
    """

    def __init__(
        self, config: GlmConfig, num_blocks: int, block_size: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._tensors: dict[tuple[int, Part], Tensor] = {}
        for layer in range(config.num_cache_layers):
            for part in PARTS:
                width = config.part_width(layer, part)
                if width is not None:
                    shape = (num_blocks * block_size, width)
                    self._tensors[layer, part] = torch.zeros(shape, dtype=dtype, device=device)

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

    def view(self, readiness: Readiness) -> "KvView":
        """The store as one forward pass sees it."""
        return KvView(self, readiness)

    def _tensor(self, layer: int, part: Part) -> Tensor:
        tensor = self._tensors.get((layer, part))
        if tensor is None:
            raise InvariantError(f"layer {layer} has no part {part!r}")
        return tensor


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
