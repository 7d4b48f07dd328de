"""The life of sequences: how they come, what results mean, how they end."""

import pytest

from lineclear.base.errors import InvariantError
from lineclear.base.ids import SequenceId
from lineclear.kv.pool import HolderKind
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.wire import TokenLogprobs
from lineclear.schedule.plan import ChunkResult
from lineclear.schedule.sequence import Sequence, SequenceState
from tests.unit.schedule.desk import EOS, Desk


def reasons(updates: list) -> list:
    return [(update.sequence.sequence_id, update.finish_reason) for update in updates]


class TestResults:
    def test_each_sampled_token_is_news_and_a_partial_prefill_is_none(self) -> None:
        desk = Desk(max_batch_tokens=4)
        sequence = desk.add([1, 2, 3, 4, 5])
        assert desk.step() == []
        (update,) = desk.step(token_id=7)
        assert (update.sequence, update.token_ids, update.finish_reason) == (sequence, [7], None)

    def test_a_stop_among_accepted_drafts_cuts_what_follows_and_does_not_count_it(self) -> None:
        desk = Desk(draft_tokens=3)
        sequence = desk.add([1, 2, 3])
        desk.step({sequence: ChunkResult([4], 0, [5, EOS, 6])})
        logprobs = [TokenLogprobs(token_id=token_id, logprob=-1.0) for token_id in (5, EOS, 6, 7)]
        (update,) = desk.step({sequence: ChunkResult([5, EOS, 6, 7], 3, [1], logprobs)})
        assert (update.token_ids, update.finish_reason, update.stop_token_id) == ([5], "stop", EOS)
        assert update.logprobs == logprobs[:1]
        assert sequence.output_token_ids == [4, 5]
        assert sequence.draft_counts == DraftCounts(
            num_verifies=1, proposed_by_position=[1, 1], accepted_by_position=[1, 1]
        )
        assert desk.scheduler.statistics().output_tokens == 2

    def test_a_stop_after_the_accepted_drafts_leaves_the_verify_as_it_was(self) -> None:
        desk = Desk(draft_tokens=3)
        sequence = desk.add([1, 2, 3])
        desk.step({sequence: ChunkResult([4], 0, [5, 6, 7])})
        (update,) = desk.step({sequence: ChunkResult([5, EOS], 1)})
        assert (update.token_ids, update.stop_token_id) == ([5], EOS)
        assert sequence.draft_counts == DraftCounts(
            num_verifies=1, proposed_by_position=[1, 1, 1], accepted_by_position=[1, 0, 0]
        )

    def test_a_stop_as_the_first_token_is_an_update_without_tokens(self) -> None:
        desk = Desk()
        desk.add([1, 2, 3], stop_token_ids=(8,))
        (update,) = desk.step(token_id=8)
        assert (update.token_ids, update.finish_reason, update.stop_token_id) == ([], "stop", 8)

    def test_a_result_that_cannot_be_trusted_ends_the_sequence_without_its_tokens(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3])
        (update,) = desk.step({sequence: ChunkResult([4], error="damaged")})
        assert (list(update.token_ids), update.finish_reason, update.error) == ([], "error", "damaged")
        assert sequence.output_token_ids == []
        assert desk.scheduler.statistics().num_damaged == 1

    def test_what_an_untrusted_prefill_read_and_wrote_is_not_found_again(self) -> None:
        desk = Desk(max_batch_tokens=8)
        desk.add([1] * 9, max_tokens=1)
        while desk.scheduler.has_work:
            desk.step()
        damaged = desk.add([1] * 30)
        desk.step()
        assert damaged.num_cached_tokens == 8
        (update,) = desk.step({damaged: ChunkResult(error="damaged")})  # a chunk in the middle, which samples nothing
        assert update.finish_reason == "error"
        fresh = desk.add([1] * 30)
        desk.step()
        assert fresh.num_cached_tokens == 0

    def test_min_tokens_keeps_a_sequence_going(self) -> None:
        desk = Desk()
        desk.add([1, 2, 3], min_tokens=2)
        assert [desk.step(token_id=EOS)[0].finish_reason for _ in range(3)] == [None, None, "stop"]

    def test_max_tokens_ends_with_length(self) -> None:
        desk = Desk()
        desk.add([1, 2, 3], max_tokens=2)
        assert [desk.step()[0].finish_reason for _ in range(2)] == [None, "length"]

    def test_a_verify_without_drafts_is_none(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3])
        desk.step()
        desk.step()
        assert sequence.draft_counts.num_verifies == 0

    def test_only_computed_tokens_count(self) -> None:
        desk = Desk(draft_tokens=3)
        sequence = desk.add([1, 2, 3])
        desk.step({sequence: ChunkResult([4], 0, [5, 6, 7])})
        assert (sequence.num_tokens, sequence.num_computed_tokens) == (4, 3)
        desk.step({sequence: ChunkResult([5, 6, 1], 2)})
        assert (sequence.num_tokens, sequence.num_computed_tokens) == (7, 6)

    @pytest.mark.parametrize(
        "result",
        [
            ChunkResult([5], 1),
            ChunkResult([5, 6], 0),
            ChunkResult([5, 6, 7, 8, 9], 4),
            ChunkResult([6, 7], 1),
            ChunkResult([], -1),
            ChunkResult([9], 0, [1, 2, 3, 4]),
            ChunkResult([9], 0, [], []),
        ],
        ids=["too few", "too many", "more than drafted", "others", "negative", "too far ahead", "logprobs"],
    )
    def test_a_result_that_does_not_fit_its_chunk_is_refused(self, result: ChunkResult) -> None:
        desk = Desk(draft_tokens=3)
        sequence = desk.add([1, 2, 3])
        desk.step({sequence: ChunkResult([4], 0, [5, 6, 7])})
        with pytest.raises(InvariantError, match="sequence 1"):
            desk.commit(desk.plan(), {sequence: result})

    def test_a_missing_result_is_refused(self) -> None:
        desk = Desk()
        desk.add([1, 2, 3])
        with pytest.raises(InvariantError, match="no result"):
            desk.scheduler.commit(desk.plan(), {})

    def test_plans_and_commits_alternate(self) -> None:
        desk = Desk()
        desk.add([1, 2, 3])
        plan = desk.plan()
        with pytest.raises(InvariantError, match="not committed"):
            desk.plan()
        desk.commit(plan)
        with pytest.raises(InvariantError, match="not the outstanding one"):
            desk.scheduler.commit(plan, {})


class TestRefusals:
    @pytest.mark.parametrize(
        ("length", "max_tokens", "error"),
        [
            (0, 5, "the prompt is empty, allowed: at least 1 token"),
            (20, 5, "the prompt has 20 tokens, allowed: at most 19"),
            (10, 8, "prompt and max_tokens take 5 blocks, allowed: at most 4"),
            (19, 1, "prompt and max_tokens take 5 blocks, allowed: at most 4"),
        ],
    )
    def test_what_can_never_run_ends_in_an_error(self, length: int, max_tokens: int, error: str) -> None:
        desk = Desk(num_blocks=4, max_model_len=20)
        sequence = desk.add([1] * length, max_tokens=max_tokens)
        assert desk.scheduler.has_work
        (update,) = desk.step()
        assert (update.sequence, update.finish_reason, update.error) == (sequence, "error", error)
        assert sequence.state is SequenceState.FINISHED
        assert not desk.scheduler.has_work

    @pytest.mark.parametrize(("length", "max_tokens"), [(10, 7), (16, 1), (1, 16)])
    def test_what_just_fits_runs_to_its_end(self, length: int, max_tokens: int) -> None:
        desk = Desk(num_blocks=4, max_model_len=20, draft_tokens=3)
        sequence = desk.add([1] * length, max_tokens=max_tokens)
        while desk.scheduler.has_work:
            updates = desk.step()
        assert (updates[-1].finish_reason, len(sequence.output_token_ids)) == ("length", max_tokens)

    def test_a_full_queue_refuses(self) -> None:
        desk = Desk(max_waiting=2)
        for _ in range(3):
            desk.add([1, 2, 3])
        updates = desk.step()
        assert reasons(updates) == [(3, "error"), (1, None), (2, None)]
        assert updates[0].error == "2 sequences are waiting already"

    def test_an_id_is_used_once_at_a_time(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3])
        twin = Sequence(sequence.sequence_id, [1], sequence.sampling)
        with pytest.raises(InvariantError, match="added twice"):
            desk.scheduler.add(twin)


class TestCancel:
    def test_while_waiting(self) -> None:
        desk = Desk(max_running=1)
        desk.add([1, 2, 3])
        waiting = desk.add([1, 2, 3])
        desk.step()
        assert desk.scheduler.cancel(waiting.sequence_id)
        assert reasons(desk.step()) == [(2, "cancelled"), (1, None)]

    def test_between_steps(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3])
        desk.step()
        assert desk.scheduler.cancel(sequence.sequence_id)
        assert desk.pool.statistics().holds_by_kind[HolderKind.SEQUENCE] == 0
        plan = desk.plan()
        assert plan.chunks == ()
        assert reasons(desk.commit(plan)) == [(1, "cancelled")]
        assert not desk.scheduler.has_work

    def test_under_the_forward_pass_its_blocks_stay_until_commit(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3, 4, 5])
        plan = desk.plan()
        assert desk.scheduler.cancel(sequence.sequence_id)
        desk.scheduler.check()
        assert sequence.state is SequenceState.RUNNING
        holders = [desk.pool.holders(block_id) for block_id in sequence.block_table]
        assert [[holder.kind for holder in some] for some in holders] == [[HolderKind.SEQUENCE, HolderKind.WRITER]] * 2
        (update,) = desk.commit(plan)
        assert (update.finish_reason, update.token_ids) == ("cancelled", ())
        assert desk.pool.num_free == desk.pool.num_blocks

    def test_no_result_is_needed_for_the_cancelled(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3])
        plan = desk.plan()
        desk.scheduler.cancel(sequence.sequence_id)
        assert reasons(desk.scheduler.commit(plan, {})) == [(1, "cancelled")]

    def test_twice_under_the_forward_pass_ends_once(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3])
        plan = desk.plan()
        assert desk.scheduler.cancel(sequence.sequence_id)
        assert desk.scheduler.cancel(sequence.sequence_id)
        assert reasons(desk.commit(plan)) == [(1, "cancelled")]
        assert desk.step() == []

    def test_a_cancel_does_not_outlive_its_sequence(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3])
        plan = desk.plan()
        desk.scheduler.cancel(sequence.sequence_id)
        desk.commit(plan)
        again = Sequence(sequence.sequence_id, [1, 2, 3], sequence.sampling)
        desk.scheduler.add(again)
        assert reasons(desk.step()) == [(1, None)]

    def test_of_the_unknown_and_the_ended_does_nothing(self) -> None:
        desk = Desk()
        sequence = desk.add([1, 2, 3], max_tokens=1)
        desk.step()
        assert not desk.scheduler.cancel(sequence.sequence_id)
        assert not desk.scheduler.cancel(SequenceId(99))
        assert not desk.scheduler.has_work

    def test_while_standing_still_for_lack_of_blocks(self) -> None:
        desk = Desk(num_blocks=3)
        desk.add([1, 2, 3], max_tokens=8)
        second = desk.add([4, 5, 6], max_tokens=8)
        desk.step()
        desk.step()
        plan = desk.plan()
        assert desk.chunk(plan, second) is None
        desk.scheduler.cancel(second.sequence_id)
        assert second.state is SequenceState.FINISHED
        assert reasons(desk.commit(plan)) == [(2, "cancelled"), (1, None)]

    def test_while_waiting_after_a_preemption(self) -> None:
        desk = Desk(num_blocks=3)
        desk.add([1, 2, 3], max_tokens=8)
        second = desk.add([4, 5, 6], max_tokens=8)
        while second.num_preemptions == 0:
            desk.step()
        assert desk.scheduler.cancel(second.sequence_id)
        assert reasons(desk.step())[0] == (2, "cancelled")


class TestSharing:
    def test_the_same_block_computed_twice_is_kept_once(self) -> None:
        desk = Desk()
        first, second = desk.add([1, 2, 3]), desk.add([1, 2, 3])
        for _ in range(2):
            desk.step(token_id=4)
        # Both have computed 1 2 3 4 and know the next token.
        assert first.block_table[0] == second.block_table[0]
        assert first.prefix is second.prefix
        assert desk.pool.statistics().held == 1
        desk.step(token_id=5)
        assert first.output_token_ids == second.output_token_ids == [4, 4, 5]

    def test_no_running_sequence_loses_its_prefix_to_eviction(self) -> None:
        desk = Desk(num_blocks=4)
        first = desk.add([1, 2, 3, 4, 5, 6], max_tokens=11)
        desk.step()
        assert desk.tree.evict(4) == 0
        while desk.scheduler.has_work:
            desk.step()
        assert len(first.output_token_ids) == 11

    def test_statistics_add_up_over_ended_and_running_sequences(self) -> None:
        desk = Desk(draft_tokens=1)
        first, second = desk.add([1, 2, 3], max_tokens=3), desk.add([4, 5, 6, 7, 8])
        desk.step({first: ChunkResult([4], 0, [5]), second: ChunkResult([4], 0, [5])})
        desk.step({first: ChunkResult([5, 6], 1), second: ChunkResult([6], 0)})
        desk.add([4, 5, 6, 7, 8, 9])
        desk.step()
        statistics = desk.scheduler.statistics()
        assert (statistics.num_running, statistics.num_waiting, statistics.num_preemptions) == (2, 0, 0)
        assert (statistics.prompt_tokens, statistics.cached_prompt_tokens) == (14, 4)
        assert statistics.output_tokens == 3 + 3 + 1
        assert statistics.draft_counts == DraftCounts(
            num_verifies=2, proposed_by_position=[2], accepted_by_position=[1]
        )
