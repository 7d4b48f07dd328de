"""P6 for several ranks: tokens, logprobs and drafts are bit for bit those of one, in both layouts of KV."""

from dataclasses import replace
from random import Random

import pytest

from lineclear.parallel.build import KvLayout
from lineclear.testing.ranks.lab import RandomDelay, late_loads
from tests.equivalence.rank_engines import ENGINE, Asked, alone, ask, ask_rounds, group, rounds

LAYOUTS: tuple[KvLayout, ...] = ("replicated", "layersplit")


@pytest.mark.parametrize("kv_layout", LAYOUTS)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("max_batch_tokens", [5, 64, 1000])
def test_any_chunks_and_hits(size: int, kv_layout: KvLayout, max_batch_tokens: int) -> None:
    with group(size, kv_layout, replace(ENGINE, max_batch_tokens=max_batch_tokens)) as ranks:
        answers = ask_rounds(ranks.engine)
        hit_tokens = ranks.engine.statistics().scheduler
    assert answers == alone(max_batch_tokens)
    assert hit_tokens


@pytest.mark.parametrize("kv_layout", LAYOUTS)
@pytest.mark.parametrize("draft_tokens", [0, 1, 6])
def test_any_number_of_drafts(kv_layout: KvLayout, draft_tokens: int) -> None:
    with group(2, kv_layout, replace(ENGINE, draft_tokens=draft_tokens)) as ranks:
        assert ask_rounds(ranks.engine) == alone(64, draft_tokens)


@pytest.mark.parametrize("kv_layout", LAYOUTS)
@pytest.mark.parametrize("size", [2, 3])
def test_each_prompt_by_itself(size: int, kv_layout: KvLayout) -> None:
    """Decodes of one token and its drafts: fewer rows than ranks."""
    with group(size, kv_layout) as ranks:
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
