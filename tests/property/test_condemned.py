"""After a verdict no later prompt reads what the broken sequence read or wrote, whoever else still holds it.

The toy engine's rows are objects that copies pass on: a row is known again by its identity wherever it comes back, from
the tree, from host memory or from disk. A verdict condemns all rows that its sequence has read or written by then.
"""

import random
from array import array
from collections import Counter

import msgspec
import pytest

from lineclear.base.ids import SequenceId
from lineclear.guard.evidence import Verify
from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.radix import RadixTree
from lineclear.kv.tiers import Tiers, TiersConfig
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.sampling import SamplingParams
from lineclear.protocol.verdicts import Verdict
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.plan import Chunk, ChunkResult
from lineclear.schedule.scheduler import Scheduler
from lineclear.schedule.sequence import Sequence, Terms
from tests.property.tiered_toy_engine import TieredToyEngine
from tests.property.toy_engine import reference

SAMPLING = SamplingParams(max_tokens=10, ignore_eos=True)
CONFIG = ScheduleConfig(
    max_batch_tokens=8,
    max_running=3,
    max_waiting=100,
    max_model_len=40,
    draft_tokens=2,
    double_cost_len=100,
    min_handoff_tokens=1,
    eos_token_ids=frozenset({0}),
)
PROMPTS = ([1] * 9, [1] * 5 + [2] * 6, [2, 3] * 5, [4] * 12)
VERDICT = Verdict(kind="collapse", detector="seed", action="retry", num_tokens=3)
NUM_WALKS = 25

Rows = dict[int, tuple[int, ...]]
"""By identity; the rows themselves are kept, so that no other object takes one's place."""


class Judged:
    """Stands for a sequence's detector."""

    level = 0.0

    def __init__(self, sequence_id: SequenceId) -> None:
        self.sequence_id = sequence_id


class RandomGuard:
    """Breaks sequences off at random, whatever they do."""

    def __init__(self, engine: "WatchedEngine") -> None:
        self.engine = engine
        self.num_blocks = 0

    def open(self, *, is_greedy: bool) -> Judged:
        del is_greedy
        return Judged(SequenceId(len(self.engine.touched) - 1))

    def judge(
        self, detector: Judged, verify: Verify, tokens: "array[int]", num_prompt_tokens: int, *, may_end: bool
    ) -> Verdict | None:
        del tokens, num_prompt_tokens
        if not may_end or self.engine.rng.random() > 0.03:
            return None
        self.engine.condemn(detector.sequence_id)
        return msgspec.structs.replace(VERDICT, num_tokens=verify.num_tokens)

    def note_forgotten(self, num_blocks: int) -> None:
        self.num_blocks += num_blocks

    def close(self, counts: DraftCounts, *, is_greedy: bool) -> None:
        """Drift is not watched."""

    def statistics(self, running: object) -> None:
        """There is nothing to report."""


class WatchedEngine(TieredToyEngine):
    """Knows what each sequence has read and written, and what nobody may read who is added from now on."""

    def __init__(self, rng: random.Random) -> None:
        policy = rng.choice(list(OffloadPolicy))
        super().__init__(CONFIG, 16, 2, TiersConfig(30, rng.choice((0, 60)), policy, PrefetchPolicy.WAIT, 1), rng)
        self.written: dict[SequenceId, Rows] = {}
        self.touched: dict[SequenceId, Rows] = {}
        self.condemned: Rows = {}
        self.forbidden: dict[SequenceId, frozenset[int]] = {}
        self.broken: set[SequenceId] = set()
        self.counts = Counter[str]()
        self.guard = RandomGuard(self)
        self.scheduler = Scheduler(CONFIG, self.pool, self.tree, None, self.tiers, self.guard)

    def add_watched(self, prompt: list[int], *, use_cache: bool, may_end: bool) -> None:
        sequence_id, terms = SequenceId(len(self.sequences)), Terms(uses_cache=use_cache, is_guarded=may_end)
        self.written[sequence_id], self.touched[sequence_id] = {}, {}
        self.forbidden[sequence_id] = frozenset(self.condemned)
        self.submit(Sequence(sequence_id, prompt, SAMPLING, terms=terms))

    def condemn(self, sequence_id: SequenceId) -> None:
        family = self.sequences[sequence_id].tokens[: self.block_size + 1]
        others = [each for each in self.running() if each.sequence_id != sequence_id]
        self.counts["verdicts beside company"] += any(each.tokens[: len(family)] == family for each in others)
        self.condemned |= self.touched[sequence_id]
        self.broken.add(sequence_id)

    def _run_chunk(self, sequence: Sequence, chunk: Chunk) -> ChunkResult | None:
        sequence_id = sequence.sequence_id
        read = self._rows(sequence, 0, chunk.start)
        assert not self.forbidden[sequence_id] & read.keys(), "condemned KV is read"
        foreign = read.keys() - self.written[sequence_id].keys()
        assert sequence.terms.uses_cache or not foreign, "KV of others is read by a sequence that uses no cache"
        self.counts["cached reads"] += bool(foreign)
        result = super()._run_chunk(sequence, chunk)
        written = self._rows(sequence, chunk.start, chunk.end)
        self.written[sequence_id] |= written
        self.touched[sequence_id] |= read | written
        return result

    def _rows(self, sequence: Sequence, start: int, end: int) -> Rows:
        rows = [self._target_store[self._slot(sequence, position)] for position in range(start, end)]
        return {id(row): row for row in rows}


def walk(seed: int) -> Counter[str]:
    """Requests, verdicts and copies at random; then all ends, and everybody has what it would have alone."""
    rng = random.Random(seed)
    engine = WatchedEngine(rng)
    for _ in range(70):
        if rng.random() < 0.4:
            prompt = rng.choice(PROMPTS) + [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
            engine.add_watched(prompt, use_cache=rng.random() < 0.75, may_end=rng.random() < 0.9)
        engine.turn_copies()
        if engine.scheduler.has_work:
            engine.step()
    engine.drain(max_steps=4000)
    for sequence in engine.sequences.values():
        check_ending(engine, sequence, is_broken=sequence.sequence_id in engine.broken)
    engine.counts["blocks"] = engine.guard.num_blocks
    statistics = engine.pool.statistics()
    assert statistics.held == statistics.idle, "a block is held after the drain"
    return engine.counts


def check_ending(engine: WatchedEngine, sequence: Sequence, *, is_broken: bool) -> None:
    last = engine.updates[sequence.sequence_id][-1]
    assert (last.finish_reason == "broken") == (last.verdict is not None) == is_broken
    if not is_broken:
        expected = reference(sequence.prompt_token_ids, sequence.sampling, CONFIG.max_model_len)
        assert engine.output(sequence) == expected.token_ids


def test_nobody_who_comes_later_reads_what_is_condemned_nor_reads_a_cache_unasked() -> None:
    counts = Counter[str]()
    for seed in range(NUM_WALKS):
        counts += walk(seed)
    assert counts["verdicts beside company"] > 10
    assert counts["cached reads"] > 200
    assert counts["blocks"] > 60


def forget_nothing(*_: object) -> int:
    return 0


def expect_a_fault(match: str) -> None:
    with pytest.raises(AssertionError, match=match):
        Counter(walk(seed)["blocks"] for seed in range(NUM_WALKS))


@pytest.mark.parametrize(("owner", "name"), [(RadixTree, "forget_family"), (Tiers, "forget_tokens")])
def test_the_walks_find_kv_that_stays(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    monkeypatch.setattr(owner, name, forget_nothing)
    expect_a_fault("condemned KV is read")


def test_the_walks_find_suspects_that_go_on_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that share condemned KV keep their prefix: what they hold would be found again."""
    monkeypatch.setattr(Sequence, "is_suspect", property(lambda _: False, lambda *_: None), raising=False)
    expect_a_fault("condemned KV is read|lost its prefix|insert")


def test_the_walks_find_a_block_of_others_that_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RadixTree, "has_next", forget_nothing)
    expect_a_fault("uses no cache")
