"""Where the running batch's blocks lie in staging, and how many of them each part's broadcast brings.

Staging has blocks of its own, numbered alike on all ranks:

    0        │ 1 … I        │ … D              │ … P           │ … end
    zeros    │ prefix of the sequences that    │ prefix of the │ blocks that this
             │ score their context, in a pass, │ others        │ pass begins
             │ or only while drafting (to D)   │               │

so that what is sent is one run from block 1 on: I blocks of an index part, D of the draft layer's, P of a latent part.
A block that several sequences read is there once. Block 0 stays zero: tables of scores are padded with it.

A prefix block is one that holds a token before the chunk's first.

A part has one staging buffer or two, each as large as the batch (`choose_depths`): with two, a part is on its way while
the one before is read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lineclear.base.errors import ConfigError
from lineclear.base.ids import BlockId
from lineclear.kv.layout import ALIGNMENT


class Run(NamedTuple):
    """A chunk [start, end) of one sequence, whose drafting ahead writes up to `reach`; its blocks cover all of that."""

    block_ids: Sequence[BlockId]
    start: int
    end: int
    reach: int


@dataclass(frozen=True, slots=True)
class StagingMap:
    """Staging of one pass."""

    prefix_block_ids: tuple[BlockId, ...]
    """The pool's blocks that staging blocks 1, 2, … get their content from."""
    num_index_blocks: int
    num_draft_index_blocks: int
    num_blocks: int
    """Block 0 and the new ones included."""
    tables: tuple[tuple[BlockId, ...], ...]
    """For each run its blocks in staging."""

    @property
    def num_prefix_blocks(self) -> int:
        """Blocks that a latent part's broadcast brings."""
        return len(self.prefix_block_ids)


def map_staging(runs: Sequence[Run], index_topk: int, block_size: int) -> StagingMap:
    """Lay the blocks of a batch out; contexts up to `index_topk` are not scored, so their index keys are not read."""
    places: dict[BlockId, int] = {}
    scoring = [run for run in runs if run.end > index_topk]
    scoring_late = [run for run in runs if run.end <= index_topk < run.reach]
    others = [run for run in runs if run.reach <= index_topk]
    num_index_blocks = _place(places, _prefixes(scoring, block_size))
    num_draft_index_blocks = _place(places, _prefixes(scoring_late, block_size))
    _place(places, _prefixes(others, block_size))
    prefix_block_ids = tuple(places)
    _place(places, (block_id for run in runs for block_id in run.block_ids[: _blocks(run.reach, block_size)]))
    tables = tuple(
        tuple(BlockId(places[block_id]) for block_id in run.block_ids[: _blocks(run.reach, block_size)]) for run in runs
    )
    return StagingMap(prefix_block_ids, num_index_blocks, num_draft_index_blocks, len(places) + 1, tables)


@dataclass(frozen=True, slots=True)
class Depths:
    """How many buffers of each part there are."""

    latent: int
    index: int


DEPTHS = (Depths(2, 2), Depths(2, 1), Depths(1, 1))
"""What is tried, the best first. An index part travels during an attention and the experts with one buffer already."""


def choose_depths(memory_bytes: int, num_rows: int, latent_row_bytes: int, index_row_bytes: int) -> Depths | None:
    """The most buffers of so many rows that fit; None if not even one of each does."""
    for depths in DEPTHS:
        sizes = (aligned(num_rows * latent_row_bytes), aligned(num_rows * index_row_bytes))
        if depths.latent * sizes[0] + depths.index * sizes[1] <= memory_bytes:
            return depths
    return None


def aligned(num_bytes: int) -> int:
    """The next place at which a buffer may begin."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def most_blocks(memory_bytes: int, buffer_row_bytes: int, block_size: int) -> int:
    """Staging blocks that fit, when a token takes `buffer_row_bytes` in all buffers together."""
    return memory_bytes // (buffer_row_bytes * block_size)


def require_room(memory_bytes: int, buffer_row_bytes: int, block_size: int, longest_len: int) -> None:
    """Refuse staging in which the longest sequence alone does not fit.

    Raises: ConfigError with the bytes that are there and those that are needed.
    """
    needed = (_blocks(longest_len, block_size) + 1) * block_size * buffer_row_bytes
    if memory_bytes < needed:
        allowed = f"at least {needed}, for one sequence of {longest_len} tokens at {buffer_row_bytes} B each"
        raise ConfigError("staging_bytes", memory_bytes, allowed)


def _place(places: dict[BlockId, int], block_ids: Iterable[BlockId]) -> int:
    """Number blocks that have no number yet, from 1 on; return how many have one now."""
    for block_id in block_ids:
        places.setdefault(block_id, len(places) + 1)
    return len(places)


def _prefixes(runs: Iterable[Run], block_size: int) -> Iterable[BlockId]:
    return (block_id for run in runs for block_id in run.block_ids[: _blocks(run.start, block_size)])


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
