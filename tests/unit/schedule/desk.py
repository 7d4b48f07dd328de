"""A scheduler with its pool and tree, and a hand for the forward pass: a test says what each sequence generates."""

from collections.abc import Iterable

from lineclear.base.ids import SequenceId
from lineclear.kv.pool import BlockPool
from lineclear.kv.radix import RadixTree
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.plan import Chunk, ChunkResult, Plan, SequenceUpdate
from lineclear.schedule.scheduler import Scheduler
from lineclear.schedule.sequence import Sequence

EOS = 0
DEFAULTS = {
    "max_batch_tokens": 64,
    "max_running": 8,
    "max_waiting": 8,
    "max_model_len": 100,
    "draft_tokens": 0,
    "double_cost_len": 10**18,
    "min_handoff_tokens": 8,
    "eos_token_ids": frozenset({EOS}),
}


class Desk:
    """Plans and commits; every commit is followed by a full check."""

    def __init__(self, *, num_blocks: int = 32, block_size: int = 4, prefix_cache: bool = True, **config: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool, block_size, keeps=prefix_cache)
        self.scheduler = Scheduler(ScheduleConfig(**(DEFAULTS | config)), self.pool, self.tree)
        self.sequences: dict[SequenceId, Sequence] = {}
        self.now = 0

    def add(self, prompt: Iterable[int], max_tokens: int = 20, **sampling: object) -> Sequence:
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        sequence = Sequence(SequenceId(len(self.sequences) + 1), prompt, params)
        self.sequences[sequence.sequence_id] = sequence
        self.scheduler.add(sequence)
        return sequence

    def plan(self) -> Plan:
        self.now += 1
        plan = self.scheduler.plan(self.now)
        self.scheduler.check()
        return plan

    def commit(
        self, plan: Plan, results: dict[Sequence, ChunkResult] | None = None, *, token_id: int = 9
    ) -> list[SequenceUpdate]:
        """Commit; whoever samples and has no result of its own gets one plain token."""
        by_id = {sequence.sequence_id: result for sequence, result in (results or {}).items()}
        for chunk in plan.chunks:
            if chunk.samples:
                by_id.setdefault(chunk.sequence_id, ChunkResult([token_id]))
        updates = self.scheduler.commit(plan, by_id)
        self.scheduler.check()
        return updates

    def step(self, results: dict[Sequence, ChunkResult] | None = None, *, token_id: int = 9) -> list[SequenceUpdate]:
        return self.commit(self.plan(), results, token_id=token_id)

    def chunk(self, plan: Plan, sequence: Sequence) -> Chunk | None:
        found = [chunk for chunk in plan.chunks if chunk.sequence_id == sequence.sequence_id]
        return found[0] if found else None

    def spans(self, plan: Plan) -> list[tuple[int, int, int]]:
        """Return who computes what, in the plan's order: sequence, start, end."""
        return [(chunk.sequence_id, chunk.start, chunk.end) for chunk in plan.chunks]
