"""How many bytes KV takes, from plain integers.

Source of the figures in the tests: "Scaling Pain of Coding Agent Serving" (Z.ai, 2026) and the published configuration
of GLM-5: a latent of 512 values and a rope key of 64 per token and layer, an index key of 128.
"""

from dataclasses import dataclass
from enum import Enum


class Part(Enum):
    """The two things that a layer caches for each token."""

    LATENT = "latent"
    """The compressed latent and the rope key of multi-head latent attention."""
    INDEX = "index"
    """The indexer's key, by which positions are selected."""


@dataclass(frozen=True, slots=True)
class PartLayout:
    """One part of one layer."""

    width: int
    """Values per token."""
    value_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token takes in one layer."""
        return self.width * self.value_bytes


@dataclass(frozen=True, slots=True)
class KvLayout:
    """All layers that one rank stores, the draft layer included."""

    latent: PartLayout
    index: PartLayout
    num_latent_layers: int
    num_index_layers: int
    """Layers with an indexer of their own; the others reuse a selection and cache no index key."""
    block_size: int

    def part_bytes_per_token(self, part: Part) -> int:
        """Bytes that a token takes in one layer's part."""
        return self.latent.bytes_per_token if part is Part.LATENT else self.index.bytes_per_token

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token takes in all layers."""
        latent_bytes = self.num_latent_layers * self.latent.bytes_per_token
        return latent_bytes + self.num_index_layers * self.index.bytes_per_token

    @property
    def block_bytes(self) -> int:
        """Bytes that a block takes in all layers."""
        return self.block_size * self.bytes_per_token

    def num_blocks_within(self, budget_bytes: int) -> int:
        """How many whole blocks fit."""
        return budget_bytes // self.block_bytes
