"""P2 and P6 for ranks with tiers below: each rank loads its own layers, and owners send what they have loaded."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from lineclear.config.components import CacheConfig
from lineclear.engine.build_tiers import TierMaking
from lineclear.kv.tiers import TiersStatistics
from lineclear.parallel.build import KvLayout, RankLab
from lineclear.parallel.layersplit import LayerSplitPass
from lineclear.protocol.sampling import SamplingParams
from lineclear.testing.ranks.group import RankGroup
from lineclear.testing.ranks.lab import RandomDelay, SendsBeforeLoaded
from lineclear.testing.tiers.lab import Jitter
from tests.equivalence.rank_engines import ENGINE, Answer, Asked, ask, group, rounds

LAYOUTS: tuple[KvLayout, ...] = ("replicated", "layersplit")
SMALL_POOL = replace(ENGINE, max_total_tokens=384, max_model_len=320)
"""Device memory for the longest prompt, and not much beside it."""
HOST_GIB = 0.004
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=3)
PROMPTS = [Asked(each.token_ids, GREEDY) for each in rounds()[1]]


def ask_in_turn(ranks: RankGroup) -> list[list[Answer]]:
    """Each by itself, three times: what was asked first has left the device when it is asked again."""
    return [
        [ask(ranks.engine, [prompt], 100 * turn + idx)[0] for idx, prompt in enumerate(PROMPTS)] for turn in range(3)
    ]


@functools.cache
def without_tiers() -> list[list[Answer]]:
    with group(1, "replicated") as ranks:
        return [[ask(ranks.engine, [prompt], idx)[0] for idx, prompt in enumerate(PROMPTS)]] * 3


def tokens_of(answers: list[list[Answer]]) -> list[list[object]]:
    return [[(each.token_ids, each.logprobs, each.error) for each in turn] for turn in answers]


def with_tiers(
    kv_layout: KvLayout, cache: CacheConfig, making: TierMaking, make_pass: type[LayerSplitPass] = LayerSplitPass
) -> tuple[list[list[Answer]], TiersStatistics]:
    lab = RankLab(before_fill=RandomDelay(3, 0.0005), make_pass=make_pass)
    with group(2, kv_layout, SMALL_POOL, cache=cache, tier_making=making, lab=lab) as ranks:
        answers = ask_in_turn(ranks)
        tiers = ranks.engine.statistics().scheduler.tiers
        assert tiers is not None
        return answers, tiers


@pytest.mark.parametrize("kv_layout", LAYOUTS)
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_tokens_are_those_without_tiers_under_random_delays(kv_layout: KvLayout, policy: str) -> None:
    cache = CacheConfig(host_cache_gib=HOST_GIB, offload_policy=policy)
    answers, tiers = with_tiers(kv_layout, cache, TierMaking(before_step=Jitter(1, 0.002)))
    assert tokens_of(answers) == tokens_of(without_tiers())
    assert tiers.host_hit_tokens > 300


def test_sending_what_is_not_loaded_yet_is_found() -> None:
    cache = CacheConfig(host_cache_gib=HOST_GIB)
    answers, tiers = with_tiers("layersplit", cache, TierMaking(before_step=Jitter(1, 0.02)), SendsBeforeLoaded)
    assert tiers.host_hit_tokens > 300
    assert tokens_of(answers) != tokens_of(without_tiers())


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_copies_that_fail_on_one_rank_change_nothing(kv_layout: KvLayout) -> None:
    cache = CacheConfig(host_cache_gib=HOST_GIB)
    answers, tiers = with_tiers(kv_layout, cache, TierMaking(before_step=Jitter(1, 0.001, fail_share=0.03)))
    assert tiers.failures
    assert tokens_of(answers) == tokens_of(without_tiers())


@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_each_rank_has_files_of_its_own_layers(kv_layout: KvLayout, tmp_path: Path) -> None:
    host_gib = 0.0003 if kv_layout == "layersplit" else 0.0005  # about 30 blocks
    cache = CacheConfig(host_cache_gib=host_gib, disk_cache_dir=str(tmp_path), prefetch_policy="wait")
    expected = tokens_of(without_tiers())
    with group(2, kv_layout, SMALL_POOL, cache=cache) as ranks:
        answers = tokens_of(ask_in_turn(ranks))
        tiers = ranks.engine.statistics().scheduler.tiers
        assert tiers is not None
        assert tiers.disk_hit_tokens > 100
    assert answers == expected
    directories = [each for each in tmp_path.iterdir() if each.is_dir()]
    assert len(directories) == (2 if kv_layout == "layersplit" else 1)
