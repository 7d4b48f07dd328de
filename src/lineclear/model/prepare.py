"""What all layers of one pass share: rotary angles, slots to write, and which tokens have to score which positions.

A token whose context is at most `index_topk` attends to all of it and is not scored. The others are scored in groups:
short runs of tokens of several sequences together (decode), padded to the longest run and context, or one sequence's
tokens in tiles of `QUERY_TILE` (prefill). A group gathers its index keys once a layer.

Legend: T tokens, R rows (T, or the fewest that the table of operations wants), K index_topk, G rope width, S sequences
of a group, N tokens of each, P positions (a multiple of the table's `key_tile`).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lineclear.base.errors import InvariantError
from lineclear.model.batch import Batch, Segment, Selection

QUERY_TILE = 32
"""Tokens of one sequence that are scored at once: with 16 index heads, 512 rows of products."""

SHORT_RUN = 8
"""Tokens up to which runs of several sequences are scored together."""

MAX_GROUP_SCORES = 1 << 22
"""Scores of one group of short runs: 16 MiB in fp32."""

FIRST_ANGLES = 4096
"""Positions whose angles are computed at first; the table doubles as longer contexts come."""


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Tokens that are scored at once: `N` of each sequence of their group; short runs repeat their last token.

    Shapes: token_idxs: [S * N] int64, None for all tokens of the pass in order; is_hidden: [S * N, P - num_common]
    bool, which positions from `num_common` on a token must not see. `num_positions` is P.
    """

    token_idxs: Tensor | None
    is_hidden: Tensor
    num_common: int
    num_positions: int


@dataclass(frozen=True, slots=True)
class ScoreGroup:
    """Sequences whose index keys are gathered together.

    Shapes: slots: [S, P] int64, slot 0 beyond a context. `first_slot`: where the slots are consecutive, so that the
    keys can be read in place; None where they are not.
    """

    slots: Tensor
    first_slot: int | None
    tiles: tuple[QueryTile, ...]


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch, padded to R rows by repeating its first token, and what the layers need to know about it.

    Shapes: positions, slot_mapping: [T] int64; cis: [R, G / 2] complex64; cis_by_head: [R, 1, G / 2].
    `whole_context` selects everything and is right for tokens that are in no group; None where every token is in one.
    """

    num_tokens: int
    num_rows: int
    positions: Tensor
    slot_mapping: Tensor
    cis: Tensor
    cis_by_head: Tensor
    whole_context: Selection | None
    groups: tuple[ScoreGroup, ...]

    def tokens(self, rows: Tensor) -> Tensor:
        """The rows that are tokens. Shapes: rows: [R, ...]; returns [T, ...]."""
        return rows if self.num_tokens == self.num_rows else rows[: self.num_tokens]

    def pad(self, tokens: Tensor) -> Tensor:
        """Repeat the first token until there are R rows. Shapes: tokens: [T, ...]; returns [R, ...]."""
        return _padded(tokens, self.num_rows)

    def require_whole_context(self) -> Selection:
        """The selection of a batch without groups."""
        if self.whole_context is None:
            raise InvariantError("a batch without groups to score has tokens beyond index_topk")
        return self.whole_context

    def selection(self, selected: Sequence[tuple[Tensor | None, Tensor]]) -> Selection:
        """Join what the tiles selected with what needs no selection.

        Shapes: selected: each tile's token_idxs and its slots, [S * N, K].
        """
        token_idxs, slots = selected[0]
        if token_idxs is None:
            return Selection(slots, None)
        joined = slots.new_zeros(self.num_tokens, slots.shape[1])
        beyond = None
        if self.whole_context is not None:
            joined.copy_(self.whole_context.slots)
            beyond = self.whole_context.beyond
        for token_idxs, slots in selected:
            if token_idxs is not None:
                joined.index_copy_(0, token_idxs, slots)
        return Selection(joined, beyond)


class Preparation:
    """Prepares batches for one model.

    Args:
        inverse_frequencies: [G / 2] fp32.
        index_topk: K.
        min_rows: fewest rows of a pass.
        key_tile: contexts to score are padded to a multiple of it.
    """

    def __init__(self, inverse_frequencies: Tensor, index_topk: int, min_rows: int, key_tile: int) -> None:
        self._inverse_frequencies = inverse_frequencies
        self._cis = _angles(inverse_frequencies, FIRST_ANGLES)
        self._index_topk = index_topk
        self._min_rows = min_rows
        self._key_tile = key_tile
        self._last_batch: Batch | None = None
        self._last_prepared: PreparedBatch | None = None

    def prepare(self, batch: Batch, block_size: int) -> PreparedBatch:
        """Work out what all layers share; the draft layer's pass over the last batch finds it done."""
        if self._last_prepared is None or batch is not self._last_batch:
            self._last_prepared = self._prepare(batch, block_size)
            self._last_batch = batch
        return self._last_prepared

    def _prepare(self, batch: Batch, block_size: int) -> PreparedBatch:
        num_rows = max(batch.num_tokens, self._min_rows)
        angles = self._cis_up_to(max(segment.context_len for segment in batch.segments))
        cis = angles.index_select(0, _padded(batch.positions, num_rows))
        return PreparedBatch(
            num_tokens=batch.num_tokens,
            num_rows=num_rows,
            positions=batch.positions,
            slot_mapping=batch.slot_mapping,
            cis=cis,
            cis_by_head=cis.unsqueeze(1),
            whole_context=self._whole_context(batch, block_size),
            groups=tuple(self._groups(batch, block_size)),
        )

    def _cis_up_to(self, num_positions: int) -> Tensor:
        if num_positions > self._cis.shape[0]:
            self._cis = _angles(self._inverse_frequencies, 1 << (num_positions - 1).bit_length())
        return self._cis

    def _whole_context(self, batch: Batch, block_size: int) -> Selection | None:
        if all(segment.first_position >= self._index_topk for segment in batch.segments):
            return None
        slots = _slot_table(batch.segments, self._index_topk, block_size)
        lengths = torch.tensor([segment.num_tokens for segment in batch.segments], device=slots.device)
        slots = slots.repeat_interleave(lengths, dim=0)
        is_beyond = torch.arange(self._index_topk, device=slots.device) > batch.positions.unsqueeze(1)
        # Whatever else they named might hold what is not finite: a weight of zero does not make that harmless.
        slots = torch.where(is_beyond, slots[:, :1], slots)
        return Selection(slots, is_beyond.unsqueeze(1))

    def _groups(self, batch: Batch, block_size: int) -> Iterator[ScoreGroup]:
        short_runs: defaultdict[int, list[Segment]] = defaultdict(list)
        for segment in batch.segments:
            if segment.context_len <= self._index_topk:
                continue
            if segment.num_tokens <= SHORT_RUN:
                short_runs[segment.context_len.bit_length()].append(segment)
            else:
                yield self._prefill_group(segment, batch.positions, block_size)
        for segments in short_runs.values():
            longest = self._tiled(max(segment.context_len for segment in segments))
            count = max(1, MAX_GROUP_SCORES // (SHORT_RUN * longest))
            for start in range(0, len(segments), count):
                yield self._decode_group(segments[start : start + count], batch.positions, block_size)

    def _prefill_group(self, segment: Segment, positions: Tensor, block_size: int) -> ScoreGroup:
        first = max(segment.first_position, self._index_topk)
        offset = segment.start - segment.first_position
        tiles: list[QueryTile] = []
        for start in range(first, segment.context_len, QUERY_TILE):
            end = min(start + QUERY_TILE, segment.context_len)
            token_idxs = torch.arange(offset + start, offset + end, device=positions.device)
            tiles.append(self._tile(token_idxs, positions[offset + start : offset + end], start + 1, self._tiled(end)))
        return self._group((segment,), self._tiled(segment.context_len), block_size, tuple(tiles))

    def _decode_group(self, segments: Sequence[Segment], positions: Tensor, block_size: int) -> ScoreGroup:
        runs = [
            list(range(segment.start + max(0, self._index_topk - segment.first_position), segment.end))
            for segment in segments
        ]
        longest_run = max(len(run) for run in runs)
        padded_runs = [token_idx for run in runs for token_idx in run + run[-1:] * (longest_run - len(run))]
        num_common = min(segment.context_len - len(run) for segment, run in zip(segments, runs, strict=True)) + 1
        num_positions = self._tiled(max(segment.context_len for segment in segments))
        token_idxs = None
        if padded_runs != list(range(positions.shape[0])):
            token_idxs = torch.tensor(padded_runs, device=positions.device)
            positions = positions.index_select(0, token_idxs)
        tile = self._tile(token_idxs, positions, num_common, num_positions)
        return self._group(segments, num_positions, block_size, (tile,))

    def _group(
        self, segments: Sequence[Segment], num_positions: int, block_size: int, tiles: tuple[QueryTile, ...]
    ) -> ScoreGroup:
        first_slot = _first_of_consecutive(segments[0].block_table, block_size) if len(segments) == 1 else None
        return ScoreGroup(_slot_table(segments, num_positions, block_size), first_slot, tiles)

    def _tile(self, token_idxs: Tensor | None, positions: Tensor, num_common: int, num_positions: int) -> QueryTile:
        places = torch.arange(num_common, num_positions, device=positions.device)
        return QueryTile(token_idxs, places > positions.unsqueeze(1), num_common, num_positions)

    def _tiled(self, num_positions: int) -> int:
        return -(-num_positions // self._key_tile) * self._key_tile


def _angles(inverse_frequencies: Tensor, num_positions: int) -> Tensor:
    """Unit complex numbers of the rotary angles, [num_positions, G / 2]."""
    positions = torch.arange(num_positions, dtype=torch.float32, device=inverse_frequencies.device)
    angles = positions.unsqueeze(1) * inverse_frequencies
    return torch.complex(angles.cos(), angles.sin())


def _padded(tokens: Tensor, num_rows: int) -> Tensor:
    missing = num_rows - tokens.shape[0]
    return tokens if missing == 0 else torch.cat([tokens, tokens[:1].expand(missing, *tokens.shape[1:])])


def _slot_table(segments: Sequence[Segment], num_positions: int, block_size: int) -> Tensor:
    """Slots of the first positions of each segment's sequence, [S, num_positions]; slot 0 beyond its block table."""
    num_blocks = -(-num_positions // block_size)
    tables = [segment.block_table[:num_blocks] for segment in segments]
    blocks = tables[0].unsqueeze(0) if len(tables) == 1 else pad_sequence(tables, batch_first=True)
    if blocks.shape[1] < num_blocks:
        blocks = torch.nn.functional.pad(blocks, (0, num_blocks - blocks.shape[1]))
    offsets = torch.arange(block_size, device=blocks.device)
    return (blocks.unsqueeze(-1) * block_size + offsets).flatten(1)[:, :num_positions]


def _first_of_consecutive(block_table: Tensor, block_size: int) -> int | None:
    first = int(block_table[0])
    consecutive = torch.arange(first, first + block_table.shape[0], device=block_table.device)
    return first * block_size if torch.equal(block_table, consecutive) else None
