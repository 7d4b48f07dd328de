"""Takes sequences in, plans steps, and decides what their results mean.

Driven by the engine: `add` and `cancel` at any time; `plan`, one forward pass and `commit` in turn while `has_work`.

Invariants:
    1. Every added sequence gets exactly one update with a finish_reason, and none after it.
    2. Between plan and commit no block of the plan changes owner: what ends meanwhile ends at commit.
    3. What a load has failed to bring is used by nobody: its sequence begins anew and computes it.
    4. Everything ends: a sequence that could not run alone is refused, and the oldest one that runs is in every plan
       (see the planner's invariants).
"""

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId, SequenceId
from lineclear.guard.evidence import Verify
from lineclear.guard.guard import Guard
from lineclear.kv.copies import Copy, CopyEnd, CopyId
from lineclear.kv.pool import BlockPool, Holder
from lineclear.kv.prefix_key import PrefixKey
from lineclear.kv.radix import RadixTree
from lineclear.kv.tiers import Tiers, TiersStatistics
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.verdicts import Verdict
from lineclear.protocol.wire import FinishReason, GuardStatistics
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.endings import Ending, find_ending
from lineclear.schedule.holdings import Holdings
from lineclear.schedule.plan import Chunk, ChunkResult, Plan, SequenceUpdate
from lineclear.schedule.planner import Planner, Prefillers
from lineclear.schedule.queues import Queues
from lineclear.schedule.sequence import Sequence, SequenceState


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Sequences now, and totals since the start."""

    num_running: int
    num_waiting: int
    num_receiving: int
    """Sequences whose prompt is computed elsewhere."""
    num_preemptions: int
    prompt_tokens: int
    """Of all sequences that were admitted; a prompt counts once, however often it is computed."""
    cached_prompt_tokens: int
    output_tokens: int
    num_damaged: int
    """Sequences that ended because what was computed for them could not be trusted."""
    draft_counts: DraftCounts
    tiers: TiersStatistics | None = None
    guard: GuardStatistics | None = None


class Scheduler:
    """The life of the sequences of one worker."""

    def __init__(
        self,
        config: ScheduleConfig,
        pool: BlockPool,
        tree: RadixTree,
        prefillers: Prefillers | None = None,
        tiers: Tiers | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._config: Final = config
        self._pool = pool
        self._tree = tree
        self._queues = Queues()
        self._tiers = tiers
        self._holdings = Holdings(pool, tree, tiers)
        self._planner = Planner(config, self._queues, self._holdings, tree, prefillers, tiers)
        self._is_stalled = False
        self._outstanding: Plan | None = None
        self._planned: set[SequenceId] = set()
        self._cancelled: set[SequenceId] = set()
        self._spoiled: set[SequenceId] = set()
        """Sequences whose load has failed, and that cannot begin anew at this moment."""
        self._news: list[SequenceUpdate] = []
        self._now = 0
        self._output_tokens = 0
        self._num_damaged = 0
        self._ended_draft_counts = DraftCounts()

    @property
    def has_work(self) -> bool:
        """Whether there is anything to plan or to report.

        Sequences that wait for what others hold, or for what is written elsewhere, are no work until something changes.
        """
        if self._news or self._outstanding is not None:
            return True
        return not self._is_stalled and len(self._queues) > len(self._queues.receiving)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; one that can never run ends with an error, which the next commit reports."""
        self._is_stalled = False
        sequence.narrow(self._config.max_model_len, self._config.eos_token_ids)
        error = self._why_refused(sequence)
        if self._guard is not None and sequence.reader is None:
            sequence.detector = self._guard.open(is_greedy=sequence.sampling.is_greedy)
        self._queues.add(sequence)
        if error is not None:
            self._end_early(sequence, "error", error)
        elif self._tiers is not None and sequence.terms.uses_cache:
            sequence.prefix = self._tree.match(sequence.tokens, self._now)
            self._tiers.begin_prefetch(sequence.sequence_id, sequence.prefix, sequence.tokens)

    def cancel(self, sequence_id: SequenceId) -> bool:
        """End a sequence: at once, or at commit if it is in the outstanding plan. The next commit reports it.

        Returns: whether there is such a sequence.
        """
        sequence = self._queues.get(sequence_id)
        if sequence is None:
            return False
        self._is_stalled = False
        if sequence_id in self._planned:
            self._cancelled.add(sequence_id)
        else:
            self._end_early(sequence, "cancelled", None)
        return True

    def fail(self, sequence_id: SequenceId, error: str) -> None:
        """End a sequence that receives, or that waits, with an error; the next commit reports it."""
        sequence = self._queues.get(sequence_id)
        if sequence is not None and sequence_id not in self._planned:
            self._is_stalled = False
            self._end_early(sequence, "error", error)

    def arrive(self, sequence_id: SequenceId, prefill_id: str = "") -> None:
        """All that a sequence receives is written and visible: it runs from the next plan on, unless it has ended.

        `prefill_id` is the instance that wrote it.

        Order: the writers still hold the blocks.
        """
        sequence = self._receiving(sequence_id)
        if sequence is None:
            return
        self._is_stalled = False
        sequence.prefill_id = prefill_id
        self._holdings.take_received(sequence)
        self._queues.arrive(sequence)
        if sequence_id in self._spoiled:
            self._restart(sequence)

    def return_to_wait(self, sequence_id: SequenceId, *, is_local: bool) -> None:
        """What a sequence should have received will not come: it waits for another attempt, or to compute it itself.

        Unless it has ended.
        """
        sequence = self._receiving(sequence_id)
        if sequence is None:
            return
        self._is_stalled = False
        self._spoiled.discard(sequence_id)
        self._holdings.drop(sequence)
        sequence.is_local = is_local
        self._queues.return_to_wait(sequence)

    def end_remote_write(self, writer: Holder) -> None:
        """End a remote writer's holds: it is proven that it can write no more."""
        self._is_stalled = False
        self._holdings.end_remote_write(writer)

    def blocks_read(self, reader: Holder) -> list[BlockId]:
        """The blocks that a reader holds, in the order of its sequence's tokens."""
        return self._holdings.blocks_read(reader)

    def end_read(self, reader: Holder) -> None:
        """End a reader's holds: no write can read its blocks any more."""
        self._is_stalled = False
        self._holdings.end_read(reader)

    def take_copies(self) -> list[Copy]:
        """Return, once, what is to be copied between tiers, in order.

        Order: after each plan, before its forward pass, and after each commit.
        """
        return [] if self._tiers is None else self._tiers.take_copies()

    def end_copy(self, end: CopyEnd) -> None:
        """A copy between tiers has ended.

        Order: the loads of a plan end before its commit.
        """
        if self._tiers is None:
            raise InvariantError(f"copy {end.copy_id} ends without tiers")
        self._is_stalled = False
        self._tiers.end(end)
        for sequence in self._queues.running + self._queues.receiving:
            if sequence.load_id == end.copy_id:
                sequence.load_id = None
                if end.failure is not None:
                    self._spoil(sequence)

    def note_on_disk(self, keys: Collection[PrefixKey]) -> None:
        """Files were seen on disk, the oldest first; other workers write there too."""
        if self._tiers is not None and keys:
            self._tiers.note_on_disk(keys, self._now)

    def stop_prefetch(self, sequence_id: SequenceId) -> None:
        """Let a queued sequence wait for the disk no more."""
        if self._tiers is not None:
            self._is_stalled = False
            self._tiers.cancel_prefetch(sequence_id)

    def is_prefetching(self, sequence_id: SequenceId) -> bool:
        """Whether a queued sequence waits for the disk."""
        return self._tiers is not None and self._tiers.is_waiting(sequence_id)

    def forget_blocks(self, block_ids: Collection[BlockId], host_block_ids: Collection[BlockId] = ()) -> None:
        """Give up every prefix that goes through one of these blocks, on every tier: their content is suspect.

        Sequences that hold one go on, and publish nothing more.
        """
        self._is_stalled = False
        for block_id in block_ids:
            node = self._tree.node_of(block_id)
            if node is not None:
                self._tree.forget(node)
                if self._tiers is not None:
                    self._tiers.forget(node)
        if self._tiers is not None:
            self._tiers.forget_host_blocks(host_block_ids)
        for each in self._queues.running + self._queues.receiving:
            each.is_suspect = each.is_suspect or (each.prefix is not None and not each.prefix.is_alive)

    def plan(self, now: int) -> Plan:
        """Choose what the next step computes; it may be nothing, if there is only something to report.

        `now` is a logical time that does not decrease.
        Order: each plan is committed before the next one is made.
        """
        if self._outstanding is not None:
            raise InvariantError("the last plan is not committed")
        self._now = now
        plan = self._planner.plan(now)
        for sequence in self._planner.stranded:
            self._end_early(sequence, "error", f"too few blocks are left for {sequence.num_tokens} tokens")
        self._outstanding = plan
        self._is_stalled = not plan.chunks
        self._planned = {chunk.sequence_id for chunk in plan.chunks}
        return plan

    def commit(self, plan: Plan, results: Mapping[SequenceId, ChunkResult]) -> list[SequenceUpdate]:
        """Take in what came of a plan: a result for each chunk that samples and whose sequence was not cancelled.

        A result with an error ends its sequence, whether its chunk samples or not.

        Returns: what is new since the last commit, in order.
        Raises: InvariantError if the plan is not the outstanding one or a result does not fit its chunk.
        """
        if plan is not self._outstanding:
            raise InvariantError("this plan is not the outstanding one")
        self._check_loads(plan.load_ids)
        self._holdings.end_write()
        self._outstanding = None
        self._planned = set()
        for chunk in plan.chunks:
            sequence = self._queues.get(chunk.sequence_id)
            if sequence is None:
                raise InvariantError(f"sequence {chunk.sequence_id} ended under its own forward pass")
            self._commit_chunk(sequence, chunk, results.get(chunk.sequence_id))
        for sequence in [each for each in self._queues.running if each.is_sent and each.load_id is None]:
            num_computed = sequence.num_computed_tokens
            self._end(sequence)
            self._news.append(SequenceUpdate(sequence, finish_reason="length", num_computed_tokens=num_computed))
        self._cancelled.clear()
        if self._tiers is not None:
            self._tiers.write_back(self._now)
        updates, self._news = self._news, []
        return updates

    def statistics(self) -> SchedulerStatistics:
        """Return the state of the queues and the totals."""
        draft_counts = DraftCounts()
        draft_counts.merge(self._ended_draft_counts)
        for sequence in self._queues.running + self._queues.waiting + self._queues.receiving:
            draft_counts.merge(sequence.draft_counts)
        return SchedulerStatistics(
            num_running=len(self._queues.running),
            num_waiting=len(self._queues.waiting),
            num_receiving=len(self._queues.receiving),
            num_preemptions=self._queues.num_preemptions,
            prompt_tokens=self._queues.num_prompt_tokens,
            cached_prompt_tokens=self._queues.num_cached_prompt_tokens,
            output_tokens=self._output_tokens,
            num_damaged=self._num_damaged,
            draft_counts=draft_counts,
            tiers=None if self._tiers is None else self._tiers.statistics(),
            guard=self._guard_statistics(),
        )

    def check(self) -> None:
        """Check pool, tree and queues, and that every held block has a known holder.

        Raises: InvariantError if anything is wrong. Cost: proportional to the pool.
        """
        self._pool.check()
        self._tree.check()
        self._queues.check()
        if self._tiers is not None:
            self._tiers.check()
        self._holdings.check(self._queues.running + self._queues.receiving)

    def _receiving(self, sequence_id: SequenceId) -> Sequence | None:
        """A sequence that receives; None if it has ended, of which whoever carries its KV may not have heard yet."""
        sequence = self._queues.get(sequence_id)
        if sequence is not None and sequence.state is not SequenceState.RECEIVING:
            raise InvariantError(f"sequence {sequence_id} does not receive anything")
        return sequence

    def _why_refused(self, sequence: Sequence) -> str | None:
        config, num_prompt = self._config, sequence.num_prompt_tokens
        if num_prompt == 0:
            return "the prompt is empty, allowed: at least 1 token"
        if num_prompt >= config.max_model_len:
            return f"the prompt has {num_prompt} tokens, allowed: at most {config.max_model_len - 1}"
        # The newest token's KV is never needed.
        num_blocks = self._holdings.num_blocks_for(sequence.token_limit - 1)
        if num_blocks > self._pool.num_blocks:
            return f"prompt and max_tokens take {num_blocks} blocks, allowed: at most {self._pool.num_blocks}"
        if len(self._queues.waiting) >= config.max_waiting:
            return f"{config.max_waiting} sequences are waiting already"
        return None

    def _commit_chunk(self, sequence: Sequence, chunk: Chunk, result: ChunkResult | None) -> None:
        if chunk.sequence_id in self._cancelled:
            self._end_early(sequence, "cancelled", None)
        elif chunk.sequence_id in self._spoiled:
            self._restart(sequence)
        elif result is not None and result.error is not None:
            self._end_damaged(sequence, result.error)
        elif chunk.samples:
            self._commit_sample(sequence, chunk, result)
        else:
            sequence.num_computed_tokens = chunk.end
            self._holdings.publish(sequence, self._now)
            if sequence.reader is not None:
                self._news.append(SequenceUpdate(sequence, num_computed_tokens=chunk.end))

    def _commit_sample(self, sequence: Sequence, chunk: Chunk, result: ChunkResult | None) -> None:
        if result is None:
            raise InvariantError(f"sequence {chunk.sequence_id}: no result for {chunk}")
        _check_result(sequence, chunk, result)
        ending = find_ending(sequence, result.token_ids)
        num_proposed, num_accepted = _judged_drafts(chunk, result, ending)
        if num_proposed:
            sequence.draft_counts.record(num_proposed, num_accepted)
        token_ids = result.token_ids if ending is None else result.token_ids[: ending.num_kept]
        logprobs = result.logprobs if ending is None or result.logprobs is None else result.logprobs[: ending.num_kept]
        sequence.append(token_ids)
        sequence.num_computed_tokens = chunk.end - chunk.num_drafts + result.num_accepted
        self._output_tokens += len(token_ids)
        verdict = self._judge(sequence, num_proposed, num_accepted)
        if verdict is not None and verdict.ends_sequence:
            self._end_broken(sequence, SequenceUpdate(sequence, token_ids, logprobs, "broken", verdict=verdict))
            return
        self._holdings.publish(sequence, self._now)
        if ending is None:
            sequence.draft_token_ids = list(result.next_draft_token_ids)
            self._holdings.trim(sequence)
            self._news.append(SequenceUpdate(sequence, token_ids, logprobs, verdict=verdict))
        else:
            self._end(sequence)
            finish_reason, stop_token_id = ending.finish_reason, ending.stop_token_id
            self._news.append(
                SequenceUpdate(sequence, token_ids, logprobs, finish_reason, stop_token_id, verdict=verdict)
            )

    def _end_early(self, sequence: Sequence, finish_reason: FinishReason, error: str | None) -> None:
        self._end(sequence)
        self._news.append(SequenceUpdate(sequence, finish_reason=finish_reason, error=error))

    def _end_damaged(self, sequence: Sequence, error: str) -> None:
        """End a sequence; what it read and wrote is not read again by anybody who comes later."""
        self._end_early(sequence, "error", error)
        self._forget(sequence)
        self._num_damaged += 1

    def _judge(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> Verdict | None:
        if self._guard is None or sequence.detector is None:
            return None
        verify = Verify(num_proposed, num_accepted, len(sequence.output_token_ids))
        return self._guard.judge(
            sequence.detector, verify, sequence.tokens, sequence.num_prompt_tokens, may_end=sequence.terms.is_guarded
        )

    def _end_broken(self, sequence: Sequence, update: SequenceUpdate) -> None:
        """End a sequence whose state seems broken, and give up all that it read or wrote."""
        self._end(sequence)
        num_blocks = self._forget(sequence)
        if self._guard is None or update.verdict is None:
            raise InvariantError(f"sequence {sequence.sequence_id} is broken without a verdict")
        self._guard.note_forgotten(num_blocks)
        verdict = msgspec.structs.replace(
            update.verdict, num_quarantined_blocks=num_blocks, prefill_id=sequence.prefill_id
        )
        self._news.append(msgspec.structs.replace(update, verdict=verdict))

    def forget_prompt(self, tokens: "array[int]") -> int:
        """Give up, on every tier, all KV of prompts with the same first block, computed or on its way: it is suspect.

        Nobody who comes later reads it. Who has read it goes on, and publishes nothing more.

        Returns: the number of blocks given up on the device.
        """
        head = tokens[: self._tree.block_size + 1]
        for each in self._queues.running + self._queues.receiving:
            each.is_suspect = each.is_suspect or each.tokens[: len(head)] == head
        if self._tiers is not None:
            self._tiers.forget_tokens(tokens)
        return self._tree.forget_family(tokens)

    def _forget(self, sequence: Sequence) -> int:
        return self.forget_prompt(sequence.tokens)

    def _guard_statistics(self) -> GuardStatistics | None:
        if self._guard is None:
            return None
        return self._guard.statistics([each.detector for each in self._queues.running if each.detector is not None])

    def _spoil(self, sequence: Sequence) -> None:
        """What a sequence's load should have brought is not there: begin anew, now or as soon as it can."""
        if sequence.sequence_id in self._planned or sequence.state is SequenceState.RECEIVING:
            self._spoiled.add(sequence.sequence_id)
        else:
            self._restart(sequence)

    def _restart(self, sequence: Sequence) -> None:
        """Let a running sequence compute everything itself; one that is sent elsewhere ends: its readers have begun."""
        self._spoiled.discard(sequence.sequence_id)
        if sequence.reader is not None:
            self._end_early(sequence, "error", "its KV could not be loaded from host memory")
            return
        sequence.avoids_tiers = True
        self._holdings.drop(sequence)
        self._queues.preempt(sequence)

    def _check_loads(self, load_ids: Collection[CopyId]) -> None:
        under_way = set(load_ids) & {each.load_id for each in self._queues.running}
        if under_way:
            raise InvariantError(f"a plan is committed whose loads have not ended: {sorted(under_way)}")

    def _end(self, sequence: Sequence) -> None:
        self._is_stalled = False
        self._spoiled.discard(sequence.sequence_id)
        if self._tiers is not None:
            self._tiers.cancel_prefetch(sequence.sequence_id)
        self._planner.forget(sequence)
        self._queues.end(sequence)
        self._holdings.drop(sequence)
        self._ended_draft_counts.merge(sequence.draft_counts)
        if self._guard is not None and sequence.draft_counts.num_verifies:
            self._guard.close(sequence.draft_counts, is_greedy=sequence.sampling.is_greedy)


def _judged_drafts(chunk: Chunk, result: ChunkResult, ending: Ending | None) -> tuple[int, int]:
    """How many drafts of a verify were judged, and accepted.

    Of drafts beyond a stop token it cannot be said whether they were right, so they do not count.
    """
    if chunk.num_drafts and ending is not None and ending.num_kept < result.num_accepted:
        return ending.num_kept + 1, ending.num_kept + 1
    return chunk.num_drafts, result.num_accepted


def _check_result(sequence: Sequence, chunk: Chunk, result: ChunkResult) -> None:
    token_ids, num_accepted = result.token_ids, result.num_accepted
    if not 0 <= num_accepted <= chunk.num_drafts or len(token_ids) != num_accepted + 1:
        raise InvariantError(f"sequence {chunk.sequence_id}: {result} does not fit {chunk}")
    if num_accepted and list(token_ids[:num_accepted]) != sequence.draft_token_ids[:num_accepted]:
        raise InvariantError(f"sequence {chunk.sequence_id}: {result} accepts other drafts than it had")
    if len(result.next_draft_token_ids) > chunk.num_next_drafts:
        raise InvariantError(f"sequence {chunk.sequence_id}: {result} drafts further than {chunk} has room for")
    if result.logprobs is not None and len(result.logprobs) != len(token_ids):
        raise InvariantError(f"sequence {chunk.sequence_id}: {result} lacks log-probabilities")
