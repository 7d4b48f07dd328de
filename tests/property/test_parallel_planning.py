"""Laws of what ranks decide alike: the deal of tokens, the owners of layers, the places in staging."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.base.errors import ConfigError
from lineclear.base.ids import BlockId
from lineclear.kv.layout import PartShape
from lineclear.parallel.planning.deal import Span, cost, deal
from lineclear.parallel.planning.ownership import own_layers
from lineclear.parallel.planning.staging import Run, StagingMap, map_staging, most_blocks, require_room

spans = st.builds(lambda start, n: Span(start, start + n), st.integers(0, 5000), st.integers(1, 600))
sizes = st.integers(1, 9)
costs = st.integers(1, 20_000)


@given(st.lists(spans, min_size=1, max_size=12), sizes, costs)
@example([Span(0, 1)], 4, 1)
@example([Span(0, 3)], 8, 1)
@example([Span(0, 1), Span(7, 9), Span(0, 4000)], 4, 100)
def test_every_token_is_dealt_once_and_nobody_has_much_more_than_another(
    chunks: list[Span], size: int, double_cost_len: int
) -> None:
    hands = deal(chunks, size, double_cost_len)
    assert len(hands) == size
    dealt = [(each.chunk_idx, p) for hand in hands for each in hand for p in range(each.start, each.end)]
    assert sorted(dealt) == [(idx, p) for idx, chunk in enumerate(chunks) for p in range(chunk.start, chunk.end)]
    assert all(list(hand) == sorted(hand) for hand in hands)
    loads = [sum(cost(each.start, each.end, double_cost_len) for each in hand) for hand in hands]
    dearest_token = max(double_cost_len + chunk.end - 1 for chunk in chunks)
    # A stripe is cut by tokens: its last ones may cost twice its average, and it may have one token more.
    assert max(loads) - min(loads) <= 2 * (sum(loads) // (2 * size)) + 2 * dearest_token


@given(st.integers(0, 100_000), st.integers(64, 4096), st.integers(2, 8), costs)
@example(0, 64, 5, 1)
def test_one_long_chunk_is_balanced_to_a_hundredth(start: int, num_tokens: int, size: int, double: int) -> None:
    hands = deal([Span(start, start + num_tokens)], size, double)
    loads = [sum(cost(each.start, each.end, double) for each in hand) for hand in hands]
    dearest_token = double + start + num_tokens
    assert max(loads) - min(loads) <= 0.01 * sum(loads) / size + 4 * dearest_token
    assert sum(map(len, hands)) <= 2 * size  # nearly always two each; where stripes are a few tokens, a cheap third


def test_a_chunk_of_fewer_tokens_than_ranks_leaves_some_idle() -> None:
    assert [len(hand) for hand in deal([Span(10, 12)], 4, 100)] == [1, 1, 0, 0]


def test_the_same_batch_is_always_dealt_alike() -> None:
    chunks = [Span(5, 6), Span(100, 104), Span(0, 900)]
    assert deal(chunks, 3, 500) == deal(list(chunks), 3, 500)


def shape_of(has_indexer: list[bool]) -> list[PartShape]:
    latent = [PartShape(layer, "latent", 1152) for layer in range(len(has_indexer))]
    return latent + [PartShape(layer, "index", 132) for layer, has in enumerate(has_indexer) if has]


@given(st.lists(st.booleans(), min_size=1, max_size=90), sizes)
def test_owners_are_balanced_by_bytes(has_indexer: list[bool], size: int) -> None:
    if size > len(has_indexer):
        with pytest.raises(ConfigError, match=f"cp: got {size}, allowed: at most {len(has_indexer)} "):
            own_layers(shape_of(has_indexer), size)
        return
    owners = own_layers(shape_of(has_indexer), size)
    assert sorted(layer for rank in range(size) for layer in owners.layers_of(rank)) == list(range(len(has_indexer)))
    of_layer = [1152 + 132 * has for has in has_indexer]
    assert owners.row_bytes == tuple(sum(of_layer[layer] for layer in owners.layers_of(r)) for r in range(size))
    assert max(owners.row_bytes) - min(owners.row_bytes) <= max(of_layer)
    assert max(len(owners.layers_of(rank)) for rank in range(size)) <= -(-len(has_indexer) // size) + 1


def test_what_the_published_models_give_on_eight_ranks() -> None:
    assert own_layers(shape_of([True] * 78), 8).capacity_ratio == pytest.approx(7.8)
    with_draft_layer = own_layers(shape_of([True] * 79), 8)
    assert with_draft_layer.capacity_ratio == pytest.approx(7.9)
    full = {0, 1, *range(2, 78, 4)}
    shared = own_layers(shape_of([layer in full for layer in range(78)]), 8)
    assert shared.capacity_ratio > 7.7


BLOCK = 4


@st.composite
def batches(draw: st.DrawFn) -> list[Run]:
    """Sequences with prefixes that some of them share."""
    shared = draw(st.integers(0, 5))
    runs: list[Run] = []
    next_block = 100
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, 40))
        end = start + draw(st.integers(1, 20))
        reach = end + draw(st.integers(0, 3))
        num_blocks = -(-reach // BLOCK)
        own = max(0, num_blocks - min(shared, start // BLOCK))
        ids = [*range(num_blocks - own), *range(next_block, next_block + own)]
        next_block += own
        runs.append(Run([BlockId(each) for each in ids], start, end, reach))
    return runs


@given(batches(), st.integers(1, 50))
@example([Run([BlockId(0), BlockId(1)], 3, 7, 8)], 7)
def test_staging_holds_each_block_once_and_sends_what_is_read(runs: list[Run], topk: int) -> None:
    placed = map_staging(runs, topk, BLOCK)
    source = source_of(placed)
    for run, table in zip(runs, placed.tables, strict=True):
        assert len(table) == -(-run.reach // BLOCK)
        for place, block_id in zip(table, run.block_ids, strict=False):
            assert 0 < place < placed.num_blocks
            assert source.get(place, block_id) == block_id
        num_prefix = -(-run.start // BLOCK)
        assert all(place <= placed.num_prefix_blocks for place in table[:num_prefix])
        assert all(place <= placed.num_index_blocks for place in table[:num_prefix] if run.end > topk)
        num_draft_index_blocks = placed.num_draft_index_blocks
        assert all(place <= num_draft_index_blocks for place in table[:num_prefix] if run.reach > topk)
    prefixes = [{*run.block_ids[: -(-run.start // BLOCK)]} for run in runs]
    assert set(placed.prefix_block_ids) == set[BlockId]().union(*prefixes)
    assert len(placed.prefix_block_ids) == len(set(placed.prefix_block_ids))
    scored = [prefix for prefix, run in zip(prefixes, runs, strict=True) if run.end > topk]
    assert placed.num_index_blocks == len(set[BlockId]().union(*scored))
    assert placed.num_blocks == 1 + len({place for table in placed.tables for place in table})


def source_of(placed: StagingMap) -> dict[int, BlockId]:
    return dict(enumerate(placed.prefix_block_ids, start=1))


def test_one_sequence_lies_in_one_run() -> None:
    run = Run([BlockId(9), BlockId(3), BlockId(7), BlockId(1)], 6, 14, 16)
    assert map_staging([run], 256, BLOCK).tables == ((1, 2, 3, 4),)


@given(st.integers(0, 1 << 30), st.integers(1, 5000), st.integers(1, 64), st.integers(1, 100_000))
def test_staging_without_room_is_refused_with_the_numbers(memory: int, row: int, block: int, longest: int) -> None:
    fits = most_blocks(memory, row, block) >= -(-longest // block) + 1
    if fits:
        require_room(memory, row, block, longest)
        return
    with pytest.raises(ConfigError, match=rf"staging_bytes: got {memory}, allowed: at least \d+, .*{longest} tokens"):
        require_room(memory, row, block, longest)
