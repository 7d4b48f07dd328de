"""Chooses what one step computes, under one budget of tokens.

The order of the choice:

    1. Admissions, first come first served. Nobody is preempted for one. Those whose prefix is just being computed by
       another, or is on its way from disk, let others pass; whoever lacks blocks does not.
    2. Running sequences, oldest first: one token for a decode, a chunk for a prefill (see `shares`), which leaves room
       in the budget for the decodes. Who finds no block preempts the youngest; the youngest itself stands still, and
       so does whoever reads more than a step can (`max_step_blocks`) beside those before it.
    3. Drafts to verify and room to draft ahead, from what is left. Nobody is preempted for a draft.

Invariants:
    1. The oldest running sequence is in every plan: it may preempt all others that run. There are three exceptions: it
       waits for those that receive, who cannot be preempted, and for offloads: both end by themselves; and a worker
       whose blocks went to quarantine may not even have room for it alone; then it is reported as stranded.
    2. Nobody is preempted for a younger sequence, for a draft or for an admission.
    3. A sequence is admitted only if all its tokens fit beside what running prefills still need, and one block more for
       each running sequence; so admissions do not feed preemptions.
"""

from collections.abc import Collection
from typing import Protocol

from lineclear.base.ids import SequenceId
from lineclear.kv.pool import Holder
from lineclear.kv.radix import PrefixNode, RadixTree
from lineclear.kv.tiers import Tiers
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.holdings import Holdings
from lineclear.schedule.plan import Chunk, Plan
from lineclear.schedule.prefix_waits import PrefixWaits
from lineclear.schedule.queues import Queues
from lineclear.schedule.sequence import Sequence, SequenceState
from lineclear.schedule.shares import SHORTEST_CHUNK_SHARE, SHORTEST_CHUNK_SHARE_OF_COPIES, Prefill, share_budget


class Prefillers(Protocol):
    """Those that can compute a prompt's KV elsewhere and write it into blocks of this worker."""

    def open(self, sequence: Sequence, start: int) -> Collection[Holder] | None:
        """Begin to hand off: who will write the KV of tokens [start, num_tokens - 1). None: nobody can now.

        Order: `begin` follows at once, unless there is no room after all.
        """
        ...

    def begin(self, sequence: Sequence) -> None:
        """The writers hold the sequence's `received_block_ids`: the order may go out."""
        ...


class _Pick:
    """A chunk in the making."""

    __slots__ = ("end", "num_drafts", "num_next_drafts", "sequence", "start")

    def __init__(self, sequence: Sequence, start: int, end: int) -> None:
        self.sequence = sequence
        self.start = start
        self.end = end
        """Drafts excluded."""
        self.num_drafts = 0
        self.num_next_drafts = 0


class Planner:
    """Makes plans; moves sequences between the queues and blocks into their tables as it goes."""

    def __init__(
        self,
        config: ScheduleConfig,
        queues: Queues,
        holdings: Holdings,
        tree: RadixTree,
        prefillers: Prefillers | None,
        tiers: Tiers | None = None,
    ) -> None:
        self._prefillers = prefillers
        self._tiers = tiers
        self._config = config
        self._queues = queues
        self._holdings = holdings
        self._tree = tree
        self._waits = PrefixWaits(tree)
        self._picks: list[_Pick] = []
        self._budget = 0
        self._num_step_blocks = 0
        """Blocks that the picks read or write, each sequence's counted by itself; only with a limit."""
        self._refusal: tuple[Sequence, int] | None = None
        self.stranded: list[Sequence] = []
        """Sequences that the last plan found to need more blocks than there are outside quarantine."""

    def plan(self, now: int) -> Plan:
        """Choose the chunks of one step; their blocks are then held by the writer.

        Order: the writer's holds end, and the sequences' tokens are counted, before the next plan.
        """
        self._picks = []
        self._budget = self._config.max_batch_tokens
        self._num_step_blocks = 0
        self.stranded = []
        self._admit_waiting(now)
        self._pick_running()
        self._pick_drafts()
        return self._make_plan()

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence that ends."""
        self._waits.forget(sequence)
        if self._refusal is not None and self._refusal[0] is sequence:
            self._refusal = None

    def _pick_running(self) -> None:
        running = tuple(self._queues.running)
        shares = self._share_budget(running)
        for sequence in running:
            if sequence.state is not SequenceState.RUNNING or sequence.is_sent:
                continue  # an older one has just preempted it, or it ends with this step's commit
            start = sequence.num_computed_tokens
            num_wanted = min(shares.get(sequence.sequence_id, 1), self._budget)
            if num_wanted > 0 and self._fits_step(sequence, start + num_wanted):
                self._pick(sequence, start, self._make_room(sequence, start + num_wanted))

    def _share_budget(self, running: Collection[Sequence]) -> dict[SequenceId, int]:
        """The tokens that each prefill gets beside decodes and their drafts; the oldest sequence always gets one."""
        prefills = [sequence for sequence in running if not _is_decoding(sequence) and not sequence.is_sent]
        if not prefills:
            return {}
        is_oldest = prefills[0] is self._queues.running[0]
        shares = share_budget(
            max(self._budget - self._num_reserved(), 1 if is_oldest else 0),
            [Prefill(each.num_wanted_tokens - each.num_computed_tokens, each.num_computed_tokens) for each in prefills],
            max_batch_tokens=self._config.max_batch_tokens,
            double_cost_len=self._config.double_cost_len,
            shortest_chunk_share=(
                SHORTEST_CHUNK_SHARE if self._config.max_step_blocks is None else SHORTEST_CHUNK_SHARE_OF_COPIES
            ),
        )
        return dict(zip((sequence.sequence_id for sequence in prefills), shares, strict=True))

    def _num_reserved(self) -> int:
        """Tokens of the budget that decodes and their drafts take before any prefill."""
        decodes = filter(_is_decoding, self._queues.running)
        return sum(1 + len(sequence.draft_token_ids) for sequence in decodes)

    def _make_room(self, sequence: Sequence, num_tokens: int) -> int:
        """Cover at least one more token of a running sequence, at the cost of the youngest; return how many it has."""
        start = sequence.num_computed_tokens
        running = self._queues.running
        while True:
            covered = self._holdings.extend_towards(sequence, num_tokens)
            if covered > start:
                return covered
            if running[-1] is sequence or running[-1].reader is not None or self._holdings.is_offloading:
                self._note_if_stranded(sequence, start + 1)
                return start
            self._preempt(running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        self._holdings.drop(sequence)
        self._queues.preempt(sequence)

    def _note_if_stranded(self, sequence: Sequence, num_tokens: int) -> None:
        if self._holdings.num_blocks_for(num_tokens) > self._holdings.num_usable:
            self.stranded.append(sequence)

    def _pick(self, sequence: Sequence, start: int, end: int) -> None:
        if end > start:
            self._picks.append(_Pick(sequence, start, end))
            self._budget -= end - start

    def _fits_step(self, sequence: Sequence, end: int) -> bool:
        """Whether a step may read this sequence beside those that are picked; the first of a step always fits.

        Mutates: what is counted for the step.
        """
        limit = self._config.max_step_blocks
        if limit is None:
            return True
        reach = min(end + 2 * self._config.draft_tokens, sequence.token_limit)  # to verify, and to draft ahead
        num_blocks = self._holdings.num_blocks_for(max(reach, end))
        if self._picks and self._num_step_blocks + num_blocks > limit:
            return False
        self._num_step_blocks += num_blocks
        return True

    def _pick_drafts(self) -> None:
        draft_tokens = self._config.draft_tokens
        if draft_tokens == 0:
            return
        for pick in self._picks:
            if pick.end == pick.sequence.num_tokens:
                self._pick_drafts_of(pick, draft_tokens)

    def _pick_drafts_of(self, pick: _Pick, draft_tokens: int) -> None:
        sequence, end = pick.sequence, pick.end
        num_left = sequence.token_limit - end
        # The token after the accepted drafts comes on top, hence - 1; the next verify follows at least one token more.
        num_drafts = min(len(sequence.draft_token_ids), num_left - 1, self._budget)
        num_next = max(0, min(draft_tokens, num_left - 2, num_left - num_drafts + 1))
        wanted = end + num_drafts + max(0, num_next - 1)
        covered = self._holdings.extend_towards(sequence, wanted)
        if covered < wanted:
            num_drafts = min(num_drafts, covered - end)
            num_next = min(num_next, covered - end - num_drafts + 1)
        pick.num_drafts = num_drafts
        pick.num_next_drafts = num_next
        self._budget -= num_drafts

    def _admit_waiting(self, now: int) -> None:
        """Admit while there is a token in the budget for each more; it may go to somebody else."""
        running, waiting = self._queues.running, self._queues.waiting
        if not waiting:
            return
        num_spare = self._budget - self._num_reserved() - sum(not _is_decoding(sequence) for sequence in running)
        num_spare = min(num_spare, self._config.max_running - len(running) - len(self._queues.receiving))
        knows_leaders = False
        for sequence in tuple(waiting):
            if num_spare <= 0:
                return
            if self._waits.is_waiting(sequence) or self._is_prefetching(sequence):
                continue
            if not knows_leaders:
                self._waits.note_leaders((*running, *self._queues.receiving))
                knows_leaders = True
            prefix = self._find_prefix(sequence, now)
            sequence.prefix = prefix
            if sequence.terms.uses_cache and self._waits.must_wait(sequence, prefix):
                continue
            if not self._try_admit(sequence, prefix, now):
                return
            num_spare -= 1

    def _find_prefix(self, sequence: Sequence, now: int) -> PrefixNode:
        """Its longest prefix in the tree that it may read."""
        return self._tree.match(sequence.tokens, now, sequence.prefix) if sequence.terms.uses_cache else self._tree.root

    def _is_prefetching(self, sequence: Sequence) -> bool:
        return self._tiers is not None and self._tiers.is_waiting(sequence.sequence_id)

    def _try_admit(self, sequence: Sequence, prefix: PrefixNode, now: int) -> bool:
        if not self._try_claim(sequence, prefix):
            self._note_if_stranded(sequence, sequence.num_tokens)
            return False
        self._holdings.note_prefix_used(prefix, now)
        self._holdings.load(sequence)
        if self._tiers is not None:
            self._tiers.cancel_prefetch(sequence.sequence_id)
        if not self._try_hand_off(sequence):
            self._queues.admit(sequence)
        self._waits.note_leader(sequence)
        return True

    def _try_hand_off(self, sequence: Sequence) -> bool:
        """Let a sequence that holds its prefix receive the rest, if that is long and somebody can send it."""
        start = sequence.num_computed_tokens
        if self._prefillers is None or sequence.is_local:
            return False
        if sequence.num_tokens - 1 - start < self._config.min_handoff_tokens:
            return False
        writers = self._prefillers.open(sequence, start)
        if writers is None or not self._holdings.reserve(sequence, writers):
            return False
        self._queues.receive(sequence)
        self._prefillers.begin(sequence)
        return True

    def _try_claim(self, sequence: Sequence, prefix: PrefixNode) -> bool:
        """Let a waiting sequence hold its prefix if there is room for the rest of it as well."""
        holdings = self._holdings
        num_needed = holdings.num_blocks_for(sequence.num_tokens) - prefix.num_blocks
        num_promised = self._num_promised()
        num_spare = holdings.num_available - num_promised
        if num_needed > num_spare or self._is_refused_still(sequence, num_spare):
            return False
        holdings.take_prefix(sequence, prefix)
        # What the prefix holds now was counted as available before.
        if num_needed > holdings.num_available - num_promised:
            self._refusal = (sequence, num_spare)
        elif holdings.has_room_now(num_needed):
            return True
        holdings.give_back_prefix(sequence)
        return False

    def _num_promised(self) -> int:
        """Return how many blocks running sequences still need for the tokens they have, and one more for each."""
        num_blocks_for = self._holdings.num_blocks_for
        running = self._queues.running
        return sum(max(0, num_blocks_for(sequence.num_tokens) - len(sequence.block_table)) + 1 for sequence in running)

    def _is_refused_still(self, sequence: Sequence, num_spare: int) -> bool:
        """Whether trying again cannot be worth the walk along a long prefix: nothing has become free since.

        Nobody waits for ever by this. A refusal means that what the sequence needs and the idle blocks of its prefix
        exceed what was spare; if no more is spare when nothing runs, the sequence does not fit at all.
        """
        return self._refusal is not None and self._refusal[0] is sequence and num_spare <= self._refusal[1]

    def _make_plan(self) -> Plan:
        decodes = [pick for pick in self._picks if pick.start == pick.sequence.num_tokens - 1]
        prefills = [pick for pick in self._picks if pick.start != pick.sequence.num_tokens - 1]
        picks = decodes + prefills
        self._holdings.begin_write((pick.sequence, pick.start) for pick in picks)
        chunks = tuple(_to_chunk(pick) for pick in picks)
        load_ids = tuple(pick.sequence.load_id for pick in picks if pick.sequence.load_id is not None)
        return Plan(chunks, sum(chunk.end - chunk.start for chunk in chunks), load_ids)


def _is_decoding(sequence: Sequence) -> bool:
    return sequence.reader is None and sequence.num_computed_tokens == sequence.num_tokens - 1


def _to_chunk(pick: _Pick) -> Chunk:
    sequence = pick.sequence
    return Chunk(
        sequence.sequence_id,
        pick.start,
        pick.end + pick.num_drafts,
        pick.num_drafts,
        pick.end == sequence.num_tokens,
        pick.num_next_drafts,
    )
