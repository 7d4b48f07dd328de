"""What a step computes, and at whose cost."""

import pytest

from lineclear.kv.radix import PrefixNode
from lineclear.schedule.holdings import Holdings
from lineclear.schedule.plan import ChunkResult
from lineclear.schedule.sequence import Sequence, SequenceState
from tests.unit.schedule.desk import EOS, Desk

WAITING, RUNNING = SequenceState.WAITING, SequenceState.RUNNING


def test_a_long_prompt_is_cut_in_chunks_and_samples_after_the_last() -> None:
    desk = Desk(max_batch_tokens=8)
    desk.add(range(1, 19))
    plans = []
    for _ in range(4):
        plan = desk.plan()
        plans.append(plan)
        desk.commit(plan)
    assert [desk.spans(plan) for plan in plans] == [[(1, 0, 8)], [(1, 8, 16)], [(1, 16, 18)], [(1, 18, 19)]]
    assert [plan.chunks[0].samples for plan in plans] == [False, False, True, True]


def test_decodes_come_first_and_prefills_get_the_rest_of_the_budget() -> None:
    desk = Desk(max_batch_tokens=8)
    desk.add([1, 2, 3])
    desk.step()
    desk.add(range(10, 30))
    plan = desk.plan()
    assert desk.spans(plan) == [(1, 3, 4), (2, 0, 7)]
    assert plan.num_tokens == 8


def test_an_older_prefill_leaves_room_for_younger_decodes() -> None:
    desk = Desk(max_batch_tokens=12)
    desk.add(range(1, 10))
    desk.add([*range(1, 9), *range(30, 60)])
    desk.add([40, 41, 42])
    plan = desk.plan()
    assert desk.spans(plan) == [(1, 0, 9), (3, 0, 3)]  # the second waits for the first one's prefix
    desk.commit(plan)
    plan = desk.plan()
    assert desk.spans(plan) == [(1, 9, 10), (3, 3, 4), (2, 4, 14)]
    desk.commit(plan)
    assert desk.spans(desk.plan()) == [(1, 10, 11), (3, 4, 5), (2, 14, 24)]


def test_a_short_prompt_is_soon_through_beside_long_ones() -> None:
    desk = Desk(max_batch_tokens=8, num_blocks=64)
    desk.add(range(1, 90), max_tokens=1)
    desk.add(range(100, 190), max_tokens=1)
    desk.step()
    desk.step()
    short = desk.add([40, 41, 42])
    assert desk.spans(desk.plan()) == [(1, 8, 12), (2, 8, 9), (3, 0, 3)]
    assert short.state is RUNNING


def test_even_without_budget_for_all_the_oldest_goes_on() -> None:
    desk = Desk(max_batch_tokens=2, max_running=3)
    first = desk.add(range(10, 14))
    desk.step()
    assert first.num_computed_tokens == 2
    desk.step()
    second, third = desk.add([1]), desk.add([2])
    desk.step()
    assert (second.state, third.state) == (RUNNING, WAITING)
    plan = desk.plan()
    assert desk.spans(plan) == [(1, 5, 6), (2, 1, 2)]
    desk.commit(plan)


def test_drafts_of_younger_sequences_do_not_hold_up_the_oldest() -> None:
    desk = Desk(max_batch_tokens=8, draft_tokens=3)
    desk.add([1, 2, 3, 4, 5], max_tokens=1)
    second = desk.add([1, 2, 3, 4, 5, *[6] * 20])
    third, fourth = desk.add([7]), desk.add([8])
    desk.step()
    assert (second.state, third.state, fourth.state) == (WAITING, RUNNING, RUNNING)
    desk.step({sequence: ChunkResult([9], 0, [8, 8, 8]) for sequence in (third, fourth)})
    # The younger two could take all 8 tokens of the budget.
    assert desk.spans(desk.plan()) == [(3, 2, 6), (4, 2, 5), (2, 10, 11)]


def test_no_more_than_max_running_are_admitted_in_order_of_arrival() -> None:
    desk = Desk(max_running=2)
    sequences = [desk.add([index] * 3) for index in (1, 2, 3)]
    assert desk.spans(desk.plan()) == [(1, 0, 3), (2, 0, 3)]
    assert [sequence.state for sequence in sequences] == [RUNNING, RUNNING, WAITING]


class TestDrafts:
    def test_a_verify_covers_the_newest_token_and_the_drafts(self) -> None:
        desk = Desk(draft_tokens=3)
        sequence = desk.add([1, 2, 3])
        chunk = desk.chunk(plan := desk.plan(), sequence)
        assert (chunk.num_drafts, chunk.num_next_drafts) == (0, 3)
        desk.commit(plan, {sequence: ChunkResult([4], 0, [5, 6, 7])})
        chunk = desk.chunk(plan := desk.plan(), sequence)
        assert (chunk.start, chunk.end, chunk.num_drafts, chunk.samples) == (3, 7, 3, True)
        assert sequence.token_ids(chunk.start, chunk.end) == [4, 5, 6, 7]
        # The draft layer may write up to position 8, as far as accepted drafts and drafting ahead can carry it.
        assert len(sequence.block_table) == 3
        desk.commit(plan, {sequence: ChunkResult([5, 8], 1, [1, 1, 1])})
        assert sequence.num_computed_tokens == 5
        assert sequence.output_token_ids == [4, 5, 8]
        assert len(sequence.block_table) == 2

    def test_no_drafts_are_asked_for_when_drafting_is_off(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3])
        assert desk.chunk(desk.plan(), sequence).num_next_drafts == 0

    def test_a_chunk_that_does_not_sample_drafts_nothing(self) -> None:
        desk = Desk(draft_tokens=3, max_batch_tokens=8)
        sequence = desk.add(range(1, 12))
        assert desk.chunk(desk.plan(), sequence).num_next_drafts == 0

    @pytest.mark.parametrize(
        ("max_tokens", "num_next", "num_drafts"),
        [(1, 0, None), (2, 0, 0), (3, 1, 1), (4, 2, 2), (5, 3, 3), (9, 3, 3)],
    )
    def test_nothing_is_drafted_beyond_the_limit(self, max_tokens: int, num_next: int, num_drafts: int | None) -> None:
        desk = Desk(draft_tokens=3)
        sequence = desk.add([1, 2, 3], max_tokens=max_tokens)
        chunk = desk.chunk(plan := desk.plan(), sequence)
        assert chunk.num_next_drafts == num_next
        desk.commit(plan, {sequence: ChunkResult([4], 0, [5] * num_next)})
        if num_drafts is not None:
            assert desk.chunk(desk.plan(), sequence).num_drafts == num_drafts

    def test_drafts_that_acceptance_has_made_too_many_are_left_out(self) -> None:
        desk = Desk(draft_tokens=3)
        sequence = desk.add([1, 2, 3], max_tokens=6)
        desk.step({sequence: ChunkResult([4], 0, [5, 6, 7])})
        desk.step({sequence: ChunkResult([5, 6, 9], 2, [1, 2, 3])})
        assert desk.chunk(desk.plan(), sequence).num_drafts == 1  # of 2 tokens that are left, one is no draft

    def test_neither_verify_nor_drafting_ahead_reaches_past_the_models_length(self) -> None:
        desk = Desk(draft_tokens=3, max_model_len=7)
        sequence = desk.add([1, 2, 3], max_tokens=50)
        desk.step({sequence: ChunkResult([4], 0, [5, 6])})
        chunk = desk.chunk(plan := desk.plan(), sequence)
        assert (chunk.end, chunk.num_drafts, chunk.num_next_drafts) == (6, 2, 1)
        (update,) = desk.commit(plan, {sequence: ChunkResult([5, 6, 7], 2, [8])})
        assert (update.token_ids, update.finish_reason) == ([5, 6, 7], "length")

    def test_drafts_are_dropped_rather_than_somebody_preempted(self) -> None:
        desk = Desk(draft_tokens=3, num_blocks=3)
        first, second = desk.add([1, 2], max_tokens=9), desk.add([3, 4, 5], max_tokens=9)
        desk.step({first: ChunkResult([6], 0, [7, 7, 7]), second: ChunkResult([6], 0, [7, 7])})
        plan = desk.plan()
        # Both have drafts for a second block and there is one: the older gets it, the younger goes on without drafts.
        assert [(chunk.end, chunk.num_drafts, chunk.num_next_drafts) for chunk in plan.chunks] == [(6, 3, 3), (4, 0, 1)]
        assert (desk.pool.num_free, desk.scheduler.statistics().num_preemptions) == (0, 0)
        desk.commit(plan)
        assert (first.state, second.state) == (RUNNING, RUNNING)

    def test_drafts_stay_within_the_budget(self) -> None:
        desk = Desk(draft_tokens=3, max_batch_tokens=6)
        first, second = desk.add([1, 2]), desk.add([3, 4])
        drafts = {first: ChunkResult([4], 0, [5, 6, 7]), second: ChunkResult([4], 0, [5, 6, 7])}
        desk.step(drafts)
        plan = desk.plan()
        assert [chunk.num_drafts for chunk in plan.chunks] == [3, 1]
        assert plan.num_tokens == 6


class TestPreemption:
    def test_the_youngest_stands_still_then_gives_way_and_then_comes_back_first(self) -> None:
        desk = Desk(num_blocks=3)
        first, second = desk.add([1, 2, 3], max_tokens=8), desk.add([4, 5, 6], max_tokens=8)
        third = desk.add([7, 8, 9], max_tokens=8)
        desk.step()
        assert third.state is WAITING  # it would leave no block for the others to grow into
        desk.step()
        # Both need a second block and there is one.
        while first.num_tokens < 9:
            assert (second.num_tokens, second.state, len(second.block_table)) == (5, RUNNING, 1)
            desk.step()
        plan = desk.plan()
        assert desk.spans(plan) == [(1, 8, 9)]
        assert (second.state, second.num_preemptions) == (WAITING, 1)
        assert len(second.block_table) == second.num_computed_tokens == 0
        desk.commit(plan)
        while first.state is RUNNING:
            desk.step()
        assert desk.spans(desk.plan()) == [(2, 0, 5)]
        assert (second.state, third.state) == (RUNNING, WAITING)
        assert second.output_token_ids == [9, 9]

    def test_a_preempted_sequence_finds_again_what_the_tree_kept(self) -> None:
        desk = Desk(num_blocks=5)
        first, second = desk.add([1, 2, 3], max_tokens=16), desk.add([4, 5, 6, 7, 8], max_tokens=8)
        while second.num_preemptions == 0:
            desk.step()
        desk.scheduler.cancel(first.sequence_id)
        plan = desk.plan()
        assert desk.chunk(plan, second).start == 8
        assert second.num_cached_tokens == 0
        desk.commit(plan)

    def test_idle_blocks_of_the_tree_go_before_anybody_is_preempted(self) -> None:
        desk = Desk(num_blocks=3)
        desk.add([1, 2, 3, 4, 5], max_tokens=1)
        desk.step()
        assert desk.tree.statistics().num_nodes == 1
        desk.add([6] * 9, max_tokens=4)
        desk.step()
        assert desk.tree.statistics().num_evicted == 1
        assert desk.scheduler.statistics().num_preemptions == 0


class TestAdmission:
    def test_a_prompt_waits_until_all_of_it_fits_beside_what_others_were_promised(self) -> None:
        desk = Desk(num_blocks=8, max_batch_tokens=8)
        first, second = desk.add(range(1, 21), max_tokens=1), desk.add(range(31, 47), max_tokens=1)
        desk.step()
        desk.step()
        # 4 blocks are free, as many as the second needs, but the first needs one of them.
        assert (desk.pool.num_free, second.state) == (4, WAITING)
        desk.step()
        assert (first.state, second.state) == (SequenceState.FINISHED, WAITING)
        desk.step()
        assert second.state is RUNNING

    def test_a_prefix_is_shared_and_only_the_rest_is_computed(self) -> None:
        desk = Desk()
        desk.add([*range(1, 10), 50], max_tokens=1)
        desk.step()
        sequence = desk.add([*range(1, 10), 60, 61])
        plan = desk.plan()
        assert desk.spans(plan) == [(2, 8, 11)]
        assert sequence.num_cached_tokens == 8
        desk.commit(plan)
        assert desk.scheduler.statistics().cached_prompt_tokens == 8

    @pytest.mark.parametrize(("length", "start"), [(8, 4), (9, 8), (5, 4), (4, 0)])
    def test_of_a_prompt_that_is_fully_known_at_least_the_last_token_is_computed(self, length: int, start: int) -> None:
        desk = Desk()
        desk.add(range(1, length + 1), max_tokens=1)
        desk.step()
        desk.add(range(1, length + 1), max_tokens=1)
        assert desk.spans(desk.plan()) == [(2, start, length)]

    def test_a_completion_is_a_prefix_too(self) -> None:
        desk = Desk()
        first = desk.add([1, 2, 3], max_tokens=9)
        while desk.scheduler.has_work:
            desk.step()
        # 12 tokens; the last token's KV is not there, and the third block's follower is not known.
        desk.add([1, 2, 3, *first.output_token_ids, 7, 7])
        assert desk.spans(desk.plan()) == [(2, 8, 14)]

    def test_choices_with_one_prompt_compute_it_once(self) -> None:
        desk = Desk(max_batch_tokens=8)
        for _ in range(3):
            desk.add(range(1, 19), max_tokens=2)
        prefills = []
        while desk.scheduler.has_work:
            plan = desk.plan()
            prefills += [chunk for chunk in plan.chunks if chunk.end <= 18]
            desk.commit(plan)
        assert sum(chunk.end - chunk.start for chunk in prefills) == 18 + 2 + 2

    def test_whoever_waits_for_a_prefix_lets_others_pass(self) -> None:
        desk = Desk(max_batch_tokens=12)
        desk.add(range(1, 10))
        follower = desk.add([*range(1, 9), 30])
        other = desk.add([40, 41, 42])
        desk.step()
        assert (follower.state, other.state) == (WAITING, RUNNING)
        desk.step()
        assert (follower.state, follower.num_cached_tokens) == (RUNNING, 4)

    def test_a_follower_goes_on_alone_when_its_leader_is_cancelled(self) -> None:
        desk = Desk(max_batch_tokens=4)
        leader, follower = desk.add(range(1, 20)), desk.add(range(1, 20))
        desk.step()
        desk.scheduler.cancel(leader.sequence_id)
        plan = desk.plan()
        assert desk.spans(plan) == [(2, 4, 8)]
        desk.commit(plan)
        assert follower.state is RUNNING

    def test_a_refusal_is_reconsidered_only_when_blocks_have_become_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        desk = Desk(num_blocks=12)
        desk.add(range(1, 10), max_tokens=1)
        desk.step()
        short, long = desk.add([50] * 11, max_tokens=4), desk.add([60] * 11, max_tokens=20)
        desk.step()
        # With its prefix of 2 idle blocks it seems to fit; without them it does not.
        follower = desk.add([*range(1, 10), *[70] * 12])
        attempts = []
        take_prefix = Holdings.take_prefix

        def spy(holdings: Holdings, sequence: Sequence, prefix: PrefixNode) -> None:
            attempts.append(sequence)
            take_prefix(holdings, sequence, prefix)

        monkeypatch.setattr(Holdings, "take_prefix", spy)
        while short.state is RUNNING:
            desk.step()
            assert (follower.state, attempts) == (WAITING, [follower])
        desk.step()
        assert (follower.state, follower.num_cached_tokens, long.state) == (RUNNING, 8, RUNNING)
        assert attempts == [follower, follower]


class TestQuarantine:
    def test_a_running_sequence_that_cannot_fit_any_more_ends_in_an_error(self) -> None:
        desk = Desk(num_blocks=2)
        sequence = desk.add([1, 2, 3], max_tokens=5)
        other = desk.pool.try_allocate(1, sequence.holder)
        desk.pool.quarantine(other)
        desk.pool.release(other, sequence.holder)
        updates = [desk.step(), desk.step(), desk.step()]
        assert [[update.finish_reason for update in some] for some in updates] == [[None], [None], ["error"]]
        assert "too few blocks" in updates[-1][0].error
        assert not desk.scheduler.has_work

    def test_a_waiting_sequence_that_cannot_fit_any_more_ends_in_an_error(self) -> None:
        desk = Desk(num_blocks=2)
        sequence = desk.add([1, 2, 3, 4, 5], max_tokens=2)
        other = desk.pool.try_allocate(1, sequence.holder)
        desk.pool.quarantine(other)
        desk.pool.release(other, sequence.holder)
        (update,) = desk.step()
        assert (update.finish_reason, update.sequence) == ("error", sequence)
        assert not desk.scheduler.has_work


def test_a_step_reads_no_more_blocks_than_it_may_and_always_those_of_one() -> None:
    desk = Desk(max_step_blocks=5, max_batch_tokens=100)
    first, second, third = desk.add([1] * 17), desk.add([2] * 13), desk.add([3] * 2)
    assert desk.spans(desk.plan()) == [(first.sequence_id, 0, 17)]
    desk = Desk(max_step_blocks=5, max_batch_tokens=100)
    first, second, third = desk.add([1] * 9), desk.add([2] * 13), desk.add([3] * 2)
    plan = desk.plan()
    assert desk.spans(plan) == [(first.sequence_id, 0, 9), (third.sequence_id, 0, 2)]
    desk.commit(plan, {first: ChunkResult([EOS])})
    assert {each[0] for each in desk.spans(desk.plan())} == {second.sequence_id, third.sequence_id}


def test_room_to_verify_and_to_draft_ahead_counts_for_a_step() -> None:
    desk = Desk(max_step_blocks=5, max_batch_tokens=100, draft_tokens=3)
    first, second = desk.add([1] * 7), desk.add([2] * 7)
    assert desk.spans(desk.plan()) == [(first.sequence_id, 0, 7)]
    desk = Desk(max_step_blocks=8, max_batch_tokens=100, draft_tokens=3)
    first, second = desk.add([1] * 7), desk.add([2] * 7)
    assert desk.spans(desk.plan()) == [(first.sequence_id, 0, 7), (second.sequence_id, 0, 7)]


def test_chunks_far_into_a_prompt_are_longer_where_a_step_brings_their_context() -> None:
    for limits, num_tokens in (({}, 2), ({"max_step_blocks": 600}, 32)):
        desk = Desk(max_batch_tokens=64, double_cost_len=1, max_model_len=2100, num_blocks=600, **limits)
        sequence = desk.add([1] * 2000)
        while sequence.num_computed_tokens < 1000:
            desk.step()
        chunk = desk.chunk(desk.plan(), sequence)
        assert chunk is not None
        assert chunk.end - chunk.start == num_tokens
