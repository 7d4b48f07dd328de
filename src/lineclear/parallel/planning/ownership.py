"""Which rank stores which layer: LayerSplit's owners, balanced by bytes.

A layer with an indexer has more bytes than one without; the draft layer is a layer like any other. The heaviest layer
goes first, each to the rank with the fewest bytes so far. What a rank can cache is bounded by the heaviest rank, since
all ranks have the same blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lineclear.base.errors import ConfigError
from lineclear.kv.layout import PartShape


@dataclass(frozen=True, slots=True)
class LayerOwners:
    """The owner of every layer with KV."""

    ranks: tuple[int, ...]
    """By layer."""
    row_bytes: tuple[int, ...]
    """Of one token in all layers of each rank."""

    def layers_of(self, rank: int) -> tuple[int, ...]:
        """The layers that a rank stores."""
        return tuple(layer for layer, owner in enumerate(self.ranks) if owner == rank)

    @property
    def capacity_ratio(self) -> float:
        """Tokens that fit, against ranks that store every layer each in the same memory; staging is not counted."""
        return sum(self.row_bytes) / max(self.row_bytes)


def own_layers(shape: Sequence[PartShape], size: int) -> LayerOwners:
    """Give each layer of a model's shape to one of `size` ranks.

    Raises: ConfigError if there are more ranks than layers.
    """
    layer_bytes: dict[int, int] = {}
    for part in shape:
        layer_bytes[part.layer] = layer_bytes.get(part.layer, 0) + part.row_bytes
    if size > len(layer_bytes):
        raise ConfigError("cp", size, f"at most {len(layer_bytes)} with layersplit: the model has so many layers of KV")
    row_bytes = [0] * size
    owners = [0] * len(layer_bytes)
    for layer in sorted(layer_bytes, key=lambda each: (-layer_bytes[each], each)):
        owners[layer] = min(range(size), key=lambda rank: (row_bytes[rank], rank))
        row_bytes[owners[layer]] += layer_bytes[layer]
    return LayerOwners(tuple(owners), tuple(row_bytes))
