"""What one run measures, and how many tokens of KV the same bytes are in both layouts. Pure arithmetic.

Bytes of a rank are chosen so that ranks that store every layer have room for a little less than the shortest prompts
of all sessions: then memory binds for them from the first length on. A prompt that is longer than what a rank has room
for cannot be computed at all, so there is room for the longest one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from lineclear.base.errors import ConfigError
from lineclear.kv.layout import PartShape
from lineclear.parallel.build import KvLayout
from lineclear.parallel.planning.ownership import own_layers

LAYOUTS: Final[tuple[KvLayout, ...]] = ("replicated", "layersplit")
"""The baseline first."""

FULL_LENGTHS = (40_000, 60_000, 80_000, 100_000, 120_000)
FULL_RANKS = (2, 4)
SHORT_LENGTHS = (8_000, 16_000, 24_000)
SHORT_RANKS = (2,)
MIN_SESSIONS = 2
FULL_SESSIONS = 3
SEEN_SHARE = 0.9
"""Of a prompt that was asked before."""

PRESSURE = 1.15
"""How many times what replicated ranks have room for the shortest prompts of all sessions are, unless told."""

ROOM_BLOCKS = 4
"""Beside the longest prompt: its last block, and what is never empty."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One run; whoever resumes it must want the same."""

    lengths: tuple[int, ...]
    """Tokens of the prompts, rising."""
    num_sessions: int
    max_batch_tokens: int = 8192
    """Token budget of a step: what a step sends of a prefix is shared by so much work."""
    block_size: int = 16
    seen_share: float = SEEN_SHARE
    pressure: float = PRESSURE

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise ConfigError("lengths", self.lengths, "at least one, rising")
        if self.lengths[0] < 16 * self.block_size:
            raise ConfigError("lengths", self.lengths[0], f"at least {16 * self.block_size} tokens")
        if self.num_sessions < MIN_SESSIONS:
            raise ConfigError("sessions", self.num_sessions, f"at least {MIN_SESSIONS}, to take turns")
        if self.pressure <= 0:
            raise ConfigError("pressure", self.pressure, "more than 0")

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.lengths[-1]

    def seen_len(self, length: int) -> int:
        """How much of a prompt is asked before it is measured."""
        return int(length * self.seen_share)


def sessions_for(lengths: Sequence[int], pressure: float = PRESSURE) -> int:
    """So many that memory binds for replicated ranks at the first length, although they have room for the longest."""
    return max(FULL_SESSIONS, math.ceil(pressure * max(lengths) / min(lengths)))


@dataclass(frozen=True, slots=True)
class Budget:
    """The same bytes of KV a rank, in both layouts.

    Units: bytes of one rank's KV store, staging apart.
    """

    kv_bytes: int
    tokens: dict[KvLayout, int]
    """What fits: whole blocks."""
    row_bytes: dict[KvLayout, int]
    """Of one token on the heaviest rank."""

    @property
    def capacity_ratio(self) -> float:
        """Tokens that fit, LayerSplit against replicated."""
        return self.tokens["layersplit"] / self.tokens["replicated"]

    def room_sessions(self, length: int) -> int:
        """Sessions of a length that ranks of either layout have room for at once."""
        return self.tokens["replicated"] // length


def budget_for(setting: Setting, shape: Sequence[PartShape], num_ranks: int) -> Budget:
    """Choose the bytes for a model's parts; the same for every number of ranks.

    Raises: ConfigError for more ranks than layers.
    """
    whole = sum(part.row_bytes for part in shape)
    wanted = int(setting.num_sessions * setting.lengths[0] / setting.pressure)
    least = setting.longest + ROOM_BLOCKS * setting.block_size
    kv_bytes = _in_blocks(max(wanted, least), setting.block_size) * whole
    heaviest = max(own_layers(shape, num_ranks).row_bytes)
    row_bytes: dict[KvLayout, int] = {"replicated": whole, "layersplit": heaviest}
    tokens: dict[KvLayout, int] = {
        layout: kv_bytes // (each * setting.block_size) * setting.block_size for layout, each in row_bytes.items()
    }
    return Budget(kv_bytes, tokens, row_bytes)


def wanted_capacity(num_layers: int, num_ranks: int) -> float:
    """The least ratio of tokens that fit: 0.97 of what even shares of whole layers give."""
    return 0.97 * num_layers / math.ceil(num_layers / num_ranks)


def _in_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size) * block_size
