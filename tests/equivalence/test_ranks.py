"""P6 for several ranks: tokens, logprobs and drafts are bit for bit those of one, in both layouts of KV."""

from dataclasses import replace
from random import Random

import msgspec
import pytest

from lineclear.engine.build import build_engine
from lineclear.engine.engine import Engine
from lineclear.parallel.build import KvLayout
from lineclear.testing.ranks.lab import RandomDelay, late_loads
from tests.equivalence.rank_engines import (
    ENGINE,
    GREEDY,
    WARM,
    Asked,
    alone,
    ask,
    ask_rounds,
    checkpoint,
    group,
    rounds,
)

LAYOUTS: tuple[KvLayout, ...] = ("replicated", "layersplit")


@pytest.mark.parametrize("kv_layout", LAYOUTS)
@pytest.mark.parametrize(("size", "max_batch_tokens"), [(2, 5), (2, 64), (4, 64), (4, 1000)])
def test_any_chunks_and_hits(size: int, kv_layout: KvLayout, max_batch_tokens: int) -> None:
    with group(size, kv_layout, replace(ENGINE, max_batch_tokens=max_batch_tokens)) as ranks:
        answers = ask_rounds(ranks.engine)
        hit_tokens = ranks.engine.statistics().scheduler.cached_prompt_tokens
    assert answers == alone(max_batch_tokens)
    assert hit_tokens > 200


@pytest.mark.parametrize("kv_layout", LAYOUTS)
@pytest.mark.parametrize("draft_tokens", [0, 6])
def test_any_number_of_drafts(kv_layout: KvLayout, draft_tokens: int) -> None:
    with group(2, kv_layout, replace(ENGINE, draft_tokens=draft_tokens)) as ranks:
        assert ask_rounds(ranks.engine) == alone(64, draft_tokens)


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_each_prompt_by_itself(kv_layout: KvLayout) -> None:
    """Decodes of one token and its drafts: hardly more rows than ranks."""
    with group(3, kv_layout) as ranks:
        answers = [[ask(ranks.engine, [each])[0] for each in asked] for asked in rounds()]
    assert answers == alone()


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_more_ranks_than_tokens(kv_layout: KvLayout) -> None:
    with group(4, kv_layout, replace(ENGINE, max_batch_tokens=1, draft_tokens=0)) as ranks:
        assert [each.token_ids for each in ask(ranks.engine, rounds()[0][:4])] == [
            each.token_ids for each in alone(64, 0)[0][:4]
        ]


def test_staging_for_one_sequence_alone() -> None:
    """The least that is allowed: sequences that do not fit together are computed in different steps."""
    row_bytes = (32 + 16 + 24) * 4
    with group(2, "layersplit", staging_bytes=row_bytes * 16 * (512 // 16 + 1)) as ranks:
        random = Random(8)
        long = [Asked(tuple(random.randrange(3, 320) for _ in range(400))) for _ in range(3)]
        answers = ask(ranks.engine, long)
        narrow_steps = ranks.engine.statistics().num_steps
    with group(2, "layersplit") as ranks:
        assert ask(ranks.engine, long) == answers
        assert ranks.engine.statistics().num_steps < narrow_steps


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_random_delays_and_late_loads_change_nothing(kv_layout: KvLayout) -> None:
    delay = RandomDelay(1, 0.002)
    with group(3, kv_layout, before_transfer=delay, make_around=late_loads(RandomDelay(2, 0.001))) as ranks:
        assert ask_rounds(ranks.engine) == alone()


@pytest.mark.parametrize("seed", range(8))
def test_random_settings_prompts_and_delays(seed: int) -> None:
    """Small pools that preempt, staging for one sequence, blocks of one token, contexts around what is scored."""
    random = Random(seed)
    block_size, max_model_len = random.choice([1, 3, 16]), random.choice([200, 320])
    config = replace(
        ENGINE,
        block_size=block_size,
        draft_tokens=random.choice([0, 1, 3, 5]),
        max_batch_tokens=random.choice([6, 17, 64, 300]),
        max_total_tokens=random.choice([400, 1000, 4096]),
        max_model_len=max_model_len,
    )
    asked = random_prompts(random, max_model_len - 20)
    needed = (48 + 24) * 4 * block_size * (-(-max_model_len // block_size) + 1)
    delays = {
        "before_transfer": RandomDelay(seed, 0.001),
        "make_around": late_loads(RandomDelay(seed, 0.001)),
    }
    expected = answers_of(build_engine(config, checkpoint()), asked)
    with group(
        random.choice([2, 3, 5]),
        random.choice(LAYOUTS),
        config,
        staging_bytes=random.choice([needed, 2 * needed, 1 << 22]),
        **(delays if seed % 2 else {}),
    ) as ranks:
        assert answers_of(ranks.engine, asked) == expected


def random_prompts(random: Random, longest: int) -> list[Asked]:
    """Some begin alike."""
    text = [random.randrange(3, 320) for _ in range(2000)]
    asked: list[Asked] = []
    for _ in range(random.randrange(2, 7)):
        start, length = random.choice([0, 0, 1000]), random.choice([1, 5, 31, 32, 33, 120, longest])
        num_shared = length - random.randrange(length) // 2
        tokens = text[start : start + num_shared] + [random.randrange(3, 320) for _ in range(length - num_shared)]
        sampling = msgspec.structs.replace(random.choice([GREEDY, WARM]), max_tokens=random.choice([1, 3, 9]))
        asked.append(Asked(tuple(tokens), sampling))
    return asked


def answers_of(engine: Engine, asked: list[Asked]) -> list[object]:
    """Some of them, and then all: tokens and logprobs; how many drafts there were depends on who ran beside whom."""
    answers = [*ask(engine, asked[: len(asked) // 2 + 1]), *ask(engine, asked, 100)]
    return [(each.token_ids, each.logprobs, each.finish_reason, each.error) for each in answers]
