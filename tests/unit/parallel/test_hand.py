"""What is dealt to ranks comes together in the order that all of them expect."""

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.ids import BlockId, SequenceId
from lineclear.engine.batch import PreparedChunk, prepare_batch
from lineclear.kv.block_table import BlockTable
from lineclear.parallel.hand import Hand, take_hand
from lineclear.parallel.planning.deal import Span, deal
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.plan import Chunk, Plan
from lineclear.schedule.sequence import Sequence as EngineSequence

BLOCK = 4
CPU = torch.device("cpu")


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, dict[SequenceId, EngineSequence]]:
    chunks: list[Chunk] = []
    sequences: dict[SequenceId, EngineSequence] = {}
    next_block = 5
    for number in range(draw(st.integers(1, 4))):
        sequence_id = SequenceId(number)
        start, num_tokens = draw(st.integers(0, 20)), draw(st.integers(1, 30))
        num_drafts = draw(st.integers(0, min(3, num_tokens - 1)))
        end = start + num_tokens
        sequence = EngineSequence(sequence_id, range(1000 * number, 1000 * number + end), SamplingParams(max_tokens=9))
        num_blocks = -(-end // BLOCK)
        sequence.block_table.extend(BlockId(next_block + idx) for idx in range(num_blocks))
        next_block += num_blocks + 2
        sequences[sequence_id] = sequence
        chunks.append(Chunk(sequence_id, start, end, num_drafts, draw(st.booleans()), 0))
    return Plan(tuple(chunks), sum(each.end - each.start for each in chunks)), sequences


def hands_of(chunks: Sequence[PreparedChunk], size: int) -> list[Hand]:
    tables: list[BlockTable] = [each.sequence.block_table for each in chunks]
    dealt = deal([Span(each.chunk.start, each.chunk.end) for each in chunks], size, 50)
    return [take_hand(chunks, tables, dealt, rank, block_size=BLOCK, device=CPU) for rank in range(size)]


@given(plans(), st.integers(1, 5))
def test_all_hands_together_are_the_plan(made: tuple[Plan, dict[SequenceId, EngineSequence]], size: int) -> None:
    whole = prepare_batch(*made, block_size=BLOCK, device=CPU)
    hands = hands_of(whole.chunks, size)
    own = [hand.plan_rows[: hand.num_own] for hand in hands]
    gathered = torch.cat(own)
    assert sorted(gathered.tolist()) == list(range(whole.batch.num_tokens))
    sampled = torch.cat([rows[hand.sampled] for rows, hand in zip(own, hands, strict=True)])
    for hand in hands:
        rows = hand.plan_rows
        assert torch.equal(hand.batch.token_ids, whole.batch.token_ids[rows])
        assert torch.equal(hand.batch.positions, whole.batch.positions[rows])
        assert torch.equal(hand.batch.slot_mapping, whole.batch.slot_mapping[rows])
        assert torch.equal(hand.slots, whole.batch.slot_mapping[gathered])
        assert hand.counts == tuple(len(each) for each in own)
        assert torch.equal(sampled[hand.sampled_order], whole.sampled_rows)
        assert hand.sampled_counts[hand.rank] == len(hand.sampled)


@given(plans(), st.integers(1, 5))
def test_a_hands_segments_end_where_their_tokens_do(
    made: tuple[Plan, dict[SequenceId, EngineSequence]], size: int
) -> None:
    whole = prepare_batch(*made, block_size=BLOCK, device=CPU)
    for hand in hands_of(whole.chunks, size):
        for segment in hand.batch.segments:
            positions = hand.batch.positions[segment.start : segment.end]
            assert positions.tolist() == list(range(segment.first_position, segment.context_len))
            chunk = next(
                each for each in whole.chunks if each.first_row <= hand.plan_rows[segment.start] < each.end_row
            )
            table = list(chunk.sequence.block_table)[: -(-segment.context_len // BLOCK)]
            assert segment.block_table.tolist() == table


def test_who_was_dealt_nothing_computes_a_row_and_gives_none() -> None:
    sequence = EngineSequence(SequenceId(0), range(7), SamplingParams(max_tokens=9))
    sequence.block_table.extend([BlockId(3), BlockId(1)])
    plan = Plan((Chunk(SequenceId(0), 5, 6, 0, samples=False, num_next_drafts=0),), 1)
    whole = prepare_batch(plan, {SequenceId(0): sequence}, block_size=BLOCK, device=CPU)
    busy, *idle = hands_of(whole.chunks, 3)
    assert (busy.num_own, [each.num_own for each in idle]) == (1, [0, 0])
    assert [each.batch.num_tokens for each in idle] == [1, 1]
    assert [each.chunk_rows for each in idle] == [(), ()]
