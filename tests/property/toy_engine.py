"""An engine over a toy model, with a KV store that remembers what it holds: wrong blocks cannot go unnoticed.

The model's next token is a hash of all tokens before it. A slot of the store holds the whole prefix it was computed
for, and in the draft layer's store the token after it as well. Whatever is read is compared with what it should be, and
the draft layer's writes ahead of the sequence are made as far as the plan allows, so that a plan without room shows.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from zlib import crc32

from lineclear.base.ids import SequenceId
from lineclear.kv.pool import BlockPool
from lineclear.kv.radix import RadixTree
from lineclear.kv.tiers import Tiers, TiersConfig
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.plan import Chunk, ChunkResult, Plan, SequenceUpdate
from lineclear.schedule.planner import Prefillers
from lineclear.schedule.scheduler import Scheduler
from lineclear.schedule.sequence import Sequence, SequenceState
from lineclear.speculate.acceptance import verify_greedy

EOS = 0
VOCAB_SIZE = 5


@dataclass(frozen=True)
class Reference:
    """What a sequence should produce, alone and without any feature."""

    token_ids: tuple[int, ...]
    finish_reason: str
    stop_token_id: int | None


def next_token(tokens: list[int], num_prompt: int, sampling: SamplingParams) -> int:
    """The model: end tokens are moved up by one while they may not come."""
    token_id = crc32(bytes(tokens)) % VOCAB_SIZE
    if len(tokens) - num_prompt < sampling.min_tokens:
        while token_id == EOS or token_id in sampling.stop_token_ids:
            token_id += 1
    return token_id


def reference(prompt: list[int], sampling: SamplingParams, max_model_len: int) -> Reference:
    tokens = list(prompt)
    while True:
        token_id = next_token(tokens, len(prompt), sampling)
        if len(tokens) - len(prompt) >= sampling.min_tokens and (
            (token_id == EOS and not sampling.ignore_eos) or token_id in sampling.stop_token_ids
        ):
            return Reference(tuple(tokens[len(prompt) :]), "stop", token_id)
        tokens.append(token_id)
        if len(tokens) == max_model_len or len(tokens) - len(prompt) == sampling.max_tokens:
            return Reference(tuple(tokens[len(prompt) :]), "length", None)


class ToyEngine:
    """Runs plans; `updates` collects all news by sequence."""

    def __init__(
        self,
        config: ScheduleConfig,
        num_blocks: int,
        block_size: int,
        prefillers: Prefillers | None = None,
        tiers: TiersConfig | None = None,
    ) -> None:
        self.config = config
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool, block_size)
        self.tiers = None if tiers is None else Tiers(tiers, self.pool, self.tree)
        self.scheduler = Scheduler(config, self.pool, self.tree, prefillers, self.tiers)
        self.sequences: dict[SequenceId, Sequence] = {}
        self.updates: dict[SequenceId, list[SequenceUpdate]] = {}
        self.now = 0
        self._target_store: MutableMapping[int, tuple[int, ...]] = {}
        self._draft_store: MutableMapping[int, tuple[int, ...]] = {}

    def add(self, prompt: list[int], sampling: SamplingParams) -> Sequence:
        sequence = Sequence(SequenceId(len(self.sequences)), prompt, sampling)
        self.submit(sequence)
        return sequence

    def submit(self, sequence: Sequence) -> None:
        self.sequences[sequence.sequence_id] = sequence
        self.updates[sequence.sequence_id] = []
        self.scheduler.add(sequence)

    def running(self) -> list[Sequence]:
        running = [s for s in self.sequences.values() if s.state is SequenceState.RUNNING]
        return sorted(running, key=lambda s: s.arrival)

    def plan(self) -> Plan:
        self.now += 1
        before = self.running()
        plan = self.scheduler.plan(self.now)
        self._check_plan(plan, before)
        return plan

    def run(self, plan: Plan) -> dict[SequenceId, ChunkResult]:
        results = {}
        for chunk in plan.chunks:
            result = self._run_chunk(self.sequences[chunk.sequence_id], chunk)
            if result is not None:
                results[chunk.sequence_id] = result
        return results

    def commit(self, plan: Plan, results: dict[SequenceId, ChunkResult]) -> list[SequenceUpdate]:
        updates = self.scheduler.commit(plan, results)
        for update in updates:
            history = self.updates[update.sequence.sequence_id]
            assert not history or history[-1].finish_reason is None, "news after the end"
            history.append(update)
        return updates

    def step(self) -> list[SequenceUpdate]:
        plan = self.plan()
        return self.commit(plan, self.run(plan))

    def drain(self, max_steps: int) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
            self.scheduler.check()
        raise AssertionError("work is left: no liveness")

    def output(self, sequence: Sequence) -> tuple[int, ...]:
        return tuple(token_id for update in self.updates[sequence.sequence_id] for token_id in update.token_ids)

    def _check_plan(self, plan: Plan, before: list[Sequence]) -> None:
        config, running = self.config, self.running()
        assert plan.num_tokens == sum(chunk.end - chunk.start for chunk in plan.chunks) <= config.max_batch_tokens
        assert len(running) <= config.max_running
        planned = [chunk.sequence_id for chunk in plan.chunks]
        assert len(set(planned)) == len(planned)
        self._check_progress(planned, before, running)
        for chunk in plan.chunks:
            self._check_chunk(self.sequences[chunk.sequence_id], chunk)

    def _check_progress(self, planned: list[SequenceId], before: list[Sequence], running: list[Sequence]) -> None:
        if running:
            assert running[0].sequence_id in planned, "the oldest stands still"
        for sequence in before:
            if sequence.state is SequenceState.WAITING:
                assert any(other.arrival < sequence.arrival for other in running), "preempted for a younger one"

    def _check_chunk(self, sequence: Sequence, chunk: Chunk) -> None:
        assert sequence.state is SequenceState.RUNNING
        real_end = chunk.end - chunk.num_drafts
        assert chunk.start == sequence.num_computed_tokens < real_end <= sequence.num_tokens
        assert chunk.samples == (real_end == sequence.num_tokens)
        assert chunk.num_drafts <= len(sequence.draft_token_ids) <= self.config.draft_tokens
        assert chunk.num_next_drafts <= (self.config.draft_tokens if chunk.samples else 0)
        assert chunk.end < self.config.max_model_len or not chunk.num_drafts
        last_write = chunk.end + max(0, chunk.num_next_drafts - 1)
        assert last_write <= min(len(sequence.block_table) * self.block_size, self.config.max_model_len)

    def _run_chunk(self, sequence: Sequence, chunk: Chunk) -> ChunkResult | None:
        tokens = sequence.token_ids(0, chunk.end)
        slots = [self._slot(sequence, position) for position in range(chunk.end)]
        for position in range(chunk.start):
            prefix = tuple(tokens[: position + 1])
            assert self._target_store[slots[position]] == prefix, "the target reads another prefix"
            follower = (tokens[position + 1],)
            assert self._draft_store[slots[position]] == prefix + follower, "the draft layer reads another prefix"
        for position in range(chunk.start, chunk.end):
            self._target_store[slots[position]] = tuple(tokens[: position + 1])
        if not chunk.samples:
            self._write_drafts(sequence, tokens + sequence.token_ids(chunk.end, chunk.end + 1), chunk.start, chunk.end)
            return None
        return self._sample(sequence, chunk, tokens)

    def _sample(self, sequence: Sequence, chunk: Chunk, tokens: list[int]) -> ChunkResult:
        num_real = chunk.end - chunk.num_drafts
        drafts = tokens[num_real:]
        choices = [self._choose(sequence, tokens[:end]) for end in range(num_real, chunk.end + 1)]
        num_accepted, token_id = verify_greedy(choices, drafts)
        known = [*tokens[: num_real + num_accepted], token_id]
        self._write_drafts(sequence, known, chunk.start, len(known) - 1)
        next_drafts: list[int] = []
        for _ in range(chunk.num_next_drafts):
            guess = self._choose(sequence, known + next_drafts)
            is_wrong = crc32(bytes([*known, *next_drafts, 7])) % 3 == 0
            next_drafts.append((guess + 1) % VOCAB_SIZE if is_wrong else guess)
            position = len(known) + len(next_drafts) - 3
            if len(next_drafts) > 1:
                self._draft_store[self._slot(sequence, position)] = ()
        return ChunkResult([*drafts[:num_accepted], token_id], num_accepted, next_drafts)

    def _choose(self, sequence: Sequence, tokens: list[int]) -> int:
        return next_token(tokens, sequence.num_prompt_tokens, sequence.sampling)

    def _write_drafts(self, sequence: Sequence, known: list[int], start: int, end: int) -> None:
        for position in range(start, end):
            self._draft_store[self._slot(sequence, position)] = tuple(known[: position + 2])

    def _slot(self, sequence: Sequence, position: int) -> int:
        return sequence.block_table[position // self.block_size] * self.block_size + position % self.block_size
