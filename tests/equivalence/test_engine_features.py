"""P6 on the whole engine: greedy tokens are the same with every feature on and off, and whatever runs beside them."""

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from lineclear.base.ids import SequenceId
from lineclear.bundled import checkpoint_path
from lineclear.bundled.corpus import load_corpus
from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.engine import Engine
from lineclear.evaluation.generate import Prompt, generate
from lineclear.gateway.tokenization import load_tokenization
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence

PLAIN = EngineConfig(max_total_tokens=16_384, draft_tokens=0, max_batch_tokens=4096)
PROMPT_LENS = (3, 17, 150, 300, 700)
"""Around a block, below and above the 256 tokens that the model attends to at once."""
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


@cache
def prompts() -> tuple[Prompt, ...]:
    tokenization = load_tokenization(checkpoint_path())
    tokens = tokenization.encode_text(max(load_corpus().held_out, key=len))
    starts = range(0, 1000 * len(PROMPT_LENS), 1000)
    return tuple(Prompt(tuple(tokens[start : start + n]), GREEDY) for start, n in zip(starts, PROMPT_LENS, strict=True))


def replace_sampling(sampling: SamplingParams) -> list[Prompt]:
    return [replace(prompt, sampling=sampling) for prompt in prompts()]


def engine(config: EngineConfig) -> Engine:
    return build_engine(config, checkpoint_path())


@cache
def alone() -> list[list[int]]:
    """Every prompt by itself, undrafted, in one chunk, on a fresh engine."""
    return [generate(engine(PLAIN), [prompt])[0].token_ids for prompt in prompts()]


def together(config: EngineConfig, *, rounds: int = 1) -> list[list[int]]:
    shared = engine(config)
    for _ in range(rounds - 1):
        generate(shared, prompts())
    return [generation.token_ids for generation in generate(shared, prompts())]


@pytest.mark.parametrize("draft_tokens", [0, 1, 3, 6])
def test_in_company_with_drafts(draft_tokens: int) -> None:
    assert together(replace(PLAIN, draft_tokens=draft_tokens)) == alone()


@pytest.mark.parametrize("max_batch_tokens", [7, 64, 511])
def test_in_chunks(max_batch_tokens: int) -> None:
    assert together(replace(PLAIN, draft_tokens=3, max_batch_tokens=max_batch_tokens)) == alone()


def test_with_prefix_hits() -> None:
    assert together(replace(PLAIN, draft_tokens=3), rounds=2) == alone()


def test_without_a_prefix_cache() -> None:
    config = replace(PLAIN, draft_tokens=3, prefix_cache=False)
    assert together(config, rounds=2) == alone()
    shared = engine(config)
    for _ in range(2):
        (generation,) = generate(shared, prompts()[-1:])
    assert generation.sequence.num_cached_tokens == 0


def test_with_another_block_size() -> None:
    assert together(replace(PLAIN, draft_tokens=3, block_size=5)) == alone()


def test_in_a_pool_so_small_that_sequences_are_preempted() -> None:
    long_outputs = replace_sampling(SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True))[:3]
    roomy = [generate(engine(PLAIN), [prompt])[0].token_ids for prompt in long_outputs]
    shared = engine(replace(PLAIN, draft_tokens=3, max_total_tokens=336))
    outputs = [generation.token_ids for generation in generate(shared, long_outputs)]
    assert shared.statistics().scheduler.num_preemptions > 0
    assert outputs == roomy


def test_beside_sequences_that_come_and_are_cancelled_at_random() -> None:
    shared = engine(replace(PLAIN, draft_tokens=3, max_batch_tokens=100))
    random = Random(5)
    tokens = prompts()[-1].token_ids
    noise = SamplingParams(max_tokens=40, temperature=1.0, seed=1)
    guests: list[SequenceId] = []

    def disturb(current: Engine, _generations: object) -> None:
        if random.random() < 0.4 and len(guests) < 30:
            guest = SequenceId(1000 + len(guests))
            start = random.randrange(500)
            current.submit(Sequence(guest, tokens[start : start + random.randrange(1, 200)], noise))
            guests.append(guest)
        if guests and random.random() < 0.3:
            current.cancel(random.choice(guests))

    outputs = generate(shared, prompts(), after_step=disturb)
    assert len(guests) > 5
    assert [generation.token_ids for generation in outputs] == alone()


def test_seeded_samples_do_not_depend_on_company_or_chunks() -> None:
    warm = SamplingParams(max_tokens=24, temperature=0.8, top_p=0.95, seed=11, ignore_eos=True)
    asked = replace_sampling(warm)
    single = [generate(engine(replace(PLAIN, draft_tokens=3)), [prompt])[0].token_ids for prompt in asked]
    shared = generate(engine(replace(PLAIN, draft_tokens=3, max_batch_tokens=64)), asked)
    assert [generation.token_ids for generation in shared] == single
