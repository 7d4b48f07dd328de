"""The engine under the same prompts: in this process, without the gateway, as the baseline runs without a server."""

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass

from lineclear.base.ids import SequenceId
from lineclear.engine.engine import Engine
from lineclear.evaluation.generate import Generation, Prompt, generate
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence
from lineclear.speculate.counters import accept_length


@dataclass(frozen=True)
class OurRun:
    """Times of one run and its tokens. Decoding counts from when every prompt has its first token."""

    prefill_seconds: float
    decode_seconds: float
    num_decoded: int
    token_ids: list[list[int]]
    accept_length: float


class _Stopwatch:
    """A step hook that notes when all prompts have their first token, and how many tokens there were then."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.prefilled: float | None = None
        self.num_tokens = 0

    def __call__(self, _engine: Engine, generations: Items[Generation]) -> None:
        if self.prefilled is None and all(generation.token_ids for generation in generations):
            self.prefilled = time.perf_counter()
            self.num_tokens = sum(len(generation.token_ids) for generation in generations)


@dataclass(frozen=True)
class FirstTokens:
    """Seconds from when the short prompt came to its first token, and to the long one's."""

    short: float
    long: float


def first_tokens_beside(engine: Engine, long: list[int], short: list[int]) -> FirstTokens:
    """Submit a short prompt once a quarter of a long one is computed."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
    first, second = (Sequence(SequenceId(idx), prompt, sampling) for idx, prompt in enumerate((long, short)))
    engine.submit(first)
    while first.num_computed_tokens < len(long) // 4:
        engine.step()
    engine.submit(second)
    started = time.perf_counter()
    seconds: dict[SequenceId, float] = {}
    while engine.has_work:
        for update in engine.step():
            seconds[update.sequence.sequence_id] = time.perf_counter() - started
    return FirstTokens(seconds[second.sequence_id], seconds[first.sequence_id])


def run(engine: Engine, prompts: list[list[int]], num_tokens: int) -> OurRun:
    """Continue each prompt greedily by `num_tokens`."""
    sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    stopwatch = _Stopwatch()
    generations = generate(engine, [Prompt(tuple(prompt), sampling) for prompt in prompts], after_step=stopwatch)
    ended = time.perf_counter()
    assert stopwatch.prefilled is not None
    counts = DraftCounts()
    for generation in generations:
        counts.merge(generation.draft_counts)
    return OurRun(
        prefill_seconds=stopwatch.prefilled - stopwatch.started,
        decode_seconds=ended - stopwatch.prefilled,
        num_decoded=sum(len(generation.token_ids) for generation in generations) - stopwatch.num_tokens,
        token_ids=[generation.token_ids for generation in generations],
        accept_length=accept_length(counts) or 1.0,
    )
