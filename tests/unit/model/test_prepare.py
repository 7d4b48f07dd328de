"""Which tokens score which positions together, and which slots they mean."""

import pytest
import torch
from torch import Tensor

from lineclear.base.errors import InvariantError
from lineclear.model.batch import Batch, Segment, Selection
from lineclear.model.prepare import QUERY_TILE, Preparation, PreparedBatch

BLOCK_SIZE = 4
INDEX_TOPK = 8
KEY_TILE = 16
INVERSE_FREQUENCIES = torch.tensor([1.0, 0.1])


def batch(*runs: tuple[int, int]) -> Batch:
    """Runs are `(first position, tokens)` of one sequence each; sequence s has blocks 100 s, 100 s + 1 and so on."""
    segments: list[Segment] = []
    positions: list[Tensor] = []
    start = 0
    for sequence, (first, num_tokens) in enumerate(runs):
        num_blocks = -(-(first + num_tokens) // BLOCK_SIZE)
        table = torch.arange(num_blocks) + 100 * sequence
        segments.append(Segment(start, start + num_tokens, first + num_tokens, table))
        positions.append(torch.arange(first, first + num_tokens))
        start += num_tokens
    joined = torch.cat(positions)
    return Batch(torch.zeros_like(joined), joined, torch.arange(start), tuple(segments))


def prepare(*runs: tuple[int, int], min_rows: int = 1) -> PreparedBatch:
    return Preparation(INVERSE_FREQUENCIES, INDEX_TOPK, min_rows, KEY_TILE).prepare(batch(*runs), BLOCK_SIZE)


def test_short_contexts_select_everything_and_score_nothing() -> None:
    prepared = prepare((0, 3), (6, 2))
    assert prepared.groups == ()
    whole = prepared.require_whole_context()
    kept = [slots[~beyond].tolist() for slots, beyond in zip(whole.slots, whole.places_beyond()[:, 0], strict=True)]
    second = [400 + position for position in range(8)]
    assert kept == [[0], [0, 1], [0, 1, 2], second[:7], second]


def test_long_contexts_are_scored_and_select_nothing_else() -> None:
    prepared = prepare((8, 1), (20, 1))
    assert prepared.whole_context is None
    with pytest.raises(InvariantError):
        prepared.require_whole_context()


def test_decode_runs_of_like_length_are_one_group_in_order() -> None:
    (group,) = prepare((9, 2), (13, 2)).groups
    (tile,) = group.tiles
    assert tile.token_idxs is None
    assert (tile.num_common, tile.num_positions) == (10, 16)
    assert group.slots.shape == (2, 16)
    assert group.slots[1].tolist() == list(range(400, 416))
    assert group.slots[0].tolist() == [*range(12), 0, 1, 2, 3]
    assert tile.is_hidden.logical_not().sum(dim=1).tolist() == [0, 1, 4, 5]


def test_runs_of_unlike_length_are_padded_by_repeating() -> None:
    (group,) = prepare((9, 1), (12, 3)).groups
    (tile,) = group.tiles
    assert tile.token_idxs is not None
    assert tile.token_idxs.tolist() == [0, 0, 0, 1, 2, 3]


def test_contexts_of_unlike_length_are_apart() -> None:
    groups = prepare((9, 1), (1000, 1), (12, 1)).groups
    assert [group.slots.shape for group in groups] == [(2, 16), (1, 1008)]


def test_a_run_across_the_border_scores_only_what_is_beyond() -> None:
    prepared = prepare((6, 4))
    (group,) = prepared.groups
    (tile,) = group.tiles
    assert tile.token_idxs is not None
    assert tile.token_idxs.tolist() == [2, 3]
    assert tile.num_common == 9
    joined = prepared.selection([(tile.token_idxs, torch.full((2, INDEX_TOPK), 77))])
    assert joined.slots[2:].tolist() == [[77] * INDEX_TOPK] * 2
    assert joined.slots[1].tolist() == list(range(8))
    assert joined.places_beyond().sum(dim=(1, 2)).tolist() == [1, 0, 0, 0]


def test_prefill_is_cut_in_query_tiles_that_start_beyond_the_border() -> None:
    (group,) = prepare((0, 100)).groups
    rows = [tile.token_idxs for tile in group.tiles]
    assert [(int(idxs[0]), int(idxs[-1]) + 1) for idxs in rows if idxs is not None] == [
        (8, 8 + QUERY_TILE),
        (8 + QUERY_TILE, 8 + 2 * QUERY_TILE),
        (8 + 2 * QUERY_TILE, 100),
    ]
    assert [tile.num_positions for tile in group.tiles] == [48, 80, 112]
    for tile in group.tiles:
        assert tile.token_idxs is not None
        visible = tile.num_common + tile.is_hidden.logical_not().sum(dim=1)
        assert visible.tolist() == (tile.token_idxs + 1).tolist()


def test_prefill_beside_decode_keeps_its_rows() -> None:
    prepared = prepare((30, 2), (10, 20))
    tokens = [
        tile.token_idxs.tolist() for group in prepared.groups for tile in group.tiles if tile.token_idxs is not None
    ]
    assert sorted(token for tile in tokens for token in tile) == list(range(22))


def test_few_tokens_are_padded_to_the_fewest_rows() -> None:
    prepared = prepare((9, 1), min_rows=4)
    assert (prepared.num_tokens, prepared.num_rows) == (1, 4)
    assert prepared.cis.shape == (4, 2)
    assert torch.equal(prepared.cis[0], prepared.cis[3])
    assert prepared.pad(torch.tensor([[5.0, 6.0]])).tolist() == [[5.0, 6.0]] * 4
    assert prepared.tokens(torch.arange(4)).tolist() == [0]


def test_angles_grow_with_the_context_and_keep_their_bits() -> None:
    preparation = Preparation(INVERSE_FREQUENCIES, INDEX_TOPK, 1, KEY_TILE)
    before = preparation.prepare(batch((4000, 4)), BLOCK_SIZE).cis
    far = preparation.prepare(batch((100_000, 2)), BLOCK_SIZE).cis
    after = preparation.prepare(batch((4000, 4)), BLOCK_SIZE).cis
    assert torch.equal(before, after)
    expected = torch.polar(torch.tensor(1.0), torch.tensor(100_001 * 0.1))
    torch.testing.assert_close(far[1, 1], expected, rtol=0, atol=0.02)


def test_one_batch_is_prepared_once() -> None:
    preparation = Preparation(INVERSE_FREQUENCIES, INDEX_TOPK, 1, KEY_TILE)
    first, second = batch((3, 1)), batch((3, 1))
    assert preparation.prepare(first, BLOCK_SIZE) is preparation.prepare(first, BLOCK_SIZE)
    assert preparation.prepare(first, BLOCK_SIZE) is not preparation.prepare(second, BLOCK_SIZE)


def test_rows_of_a_selection() -> None:
    beyond = torch.tensor([[[False, False]], [[False, True]]])
    selection = Selection(torch.tensor([[1, 2], [3, 0]]), beyond)
    row = selection.rows(torch.tensor([1, 1]))
    assert row.slots.tolist() == [[3, 0], [3, 0]]
    assert row.places_beyond().tolist() == [[[False, True]]] * 2
    assert Selection(selection.slots, None).rows(torch.tensor([0])).beyond is None
