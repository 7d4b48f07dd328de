"""The disk tier under a whole engine: prefetch policies, damage, budgets, and what is refused at the start."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from lineclear.base.errors import ConfigError
from lineclear.base.ids import SequenceId
from lineclear.bundled import checkpoint_path
from lineclear.bundled.corpus import load_corpus
from lineclear.config.components import CacheConfig, EngineConfig, ServeConfig
from lineclear.engine.build import build_engine
from lineclear.engine.build_tiers import PRODUCT, TierMaking
from lineclear.engine.engine import Engine
from lineclear.evaluation.generate import Prompt, generate
from lineclear.gateway.tokenization import load_tokenization
from lineclear.kv.copies import CopyFailure
from lineclear.kv.disk_tier import READ_BATCH
from lineclear.kv.tiers import TiersStatistics
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence

CONFIG = EngineConfig(max_total_tokens=1024, draft_tokens=3)
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
NUM_CACHED = 400
"""Of a prompt of 401 tokens: 25 blocks."""

PATIENCE_SECONDS = 60.0

OpenEngine = Callable[..., Engine]


@cache
def prompt() -> Prompt:
    tokens = load_tokenization(checkpoint_path()).encode_text(max(load_corpus().held_out, key=len))
    return Prompt(tuple(tokens[: NUM_CACHED + 1]), GREEDY)


@cache
def expected() -> list[int]:
    return generate(build_engine(CONFIG, checkpoint_path()), [prompt()])[0].token_ids


def pass_through(gate: threading.Event) -> None:
    assert gate.wait(PATIENCE_SECONDS)


@pytest.fixture
def open_engine(tmp_path: Path) -> Iterator[OpenEngine]:
    engines: list[Engine] = []

    def make(making: TierMaking = PRODUCT, config: EngineConfig = CONFIG, **changes: object) -> Engine:
        cache = CacheConfig(host_cache_gib=0.01, disk_cache_dir=str(tmp_path / "kv"), prefetch_policy="wait")
        engine = build_engine(config, checkpoint_path(), cache=replace(cache, **changes), tier_making=making)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def ask(engine: Engine) -> int:
    """Ask and check the answer; return how many tokens were found."""
    (generation,) = generate(engine, [prompt()])
    assert generation.token_ids == expected()
    return generation.sequence.num_cached_tokens


def tiers_of(engine: Engine) -> TiersStatistics:
    tiers = engine.statistics().scheduler.tiers
    assert tiers is not None
    return tiers


def test_another_engine_finds_what_one_has_written(open_engine: OpenEngine) -> None:
    assert ask(open_engine()) == 0
    other = open_engine()
    assert ask(other) == NUM_CACHED
    assert tiers_of(other).disk_hit_tokens == NUM_CACHED


def test_nothing_is_found_by_an_engine_that_computes_otherwise(open_engine: OpenEngine) -> None:
    ask(open_engine())
    assert ask(open_engine(config=replace(CONFIG, draft_tokens=0))) == 0
    assert ask(open_engine(config=replace(CONFIG, block_size=8))) == 0


def test_best_effort_does_not_wait(open_engine: OpenEngine) -> None:
    ask(open_engine())
    slow = TierMaking(before_file=lambda: time.sleep(0.05))
    assert ask(open_engine(slow, prefetch_policy="best_effort")) < NUM_CACHED


def test_wait_waits_however_long_it_takes(open_engine: OpenEngine) -> None:
    ask(open_engine())
    slow = TierMaking(before_file=lambda: time.sleep(0.01))
    assert ask(open_engine(slow, prefetch_seconds=0.01)) == NUM_CACHED


def test_a_timeout_ends_the_wait_and_what_is_there_is_used(open_engine: OpenEngine) -> None:
    ask(open_engine())
    num_files = itertools.count()
    slow = TierMaking(before_file=lambda: time.sleep(4.0 if next(num_files) == READ_BATCH else 0.0))
    engine = open_engine(slow, prefetch_policy="timeout", prefetch_seconds=1.5)
    assert ask(engine) == READ_BATCH * 16
    assert tiers_of(engine).num_prefetches == 0
    assert ask(open_engine(prefetch_policy="timeout", prefetch_seconds=60.0)) == NUM_CACHED


def test_copies_are_finished_as_far_as_there_is_time(open_engine: OpenEngine) -> None:
    gate = threading.Event()
    engine = open_engine(TierMaking(before_file=lambda: pass_through(gate)))
    engine.submit(Sequence(SequenceId(0), prompt().token_ids, GREEDY))
    while not any(update.finish_reason for update in engine.step()):  # it waits until nothing is found on disk
        pass
    assert not engine.finish_copies(0.05)
    assert tiers_of(engine).num_written_blocks == 0
    gate.set()
    assert engine.finish_copies(PATIENCE_SECONDS)
    assert tiers_of(engine).num_written_blocks == NUM_CACHED // 16
    assert ask(open_engine()) == NUM_CACHED


def test_damaged_files_are_misses_that_are_counted_and_deleted(open_engine: OpenEngine, tmp_path: Path) -> None:
    ask(open_engine())
    paths = sorted((tmp_path / "kv").rglob("*.kv"))
    assert len(paths) == NUM_CACHED // 16
    for number, path in enumerate(paths):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content if number % 2 else content[: len(content) // 2])
    engine = open_engine()
    assert ask(engine) == 0
    assert tiers_of(engine).failures[CopyFailure.DAMAGED] >= 1
    assert ask(open_engine()) == NUM_CACHED  # it was written anew


def test_files_that_vanish_are_misses(open_engine: OpenEngine, tmp_path: Path) -> None:
    ask(open_engine())
    engine = open_engine()
    for path in (tmp_path / "kv").rglob("*.kv"):
        path.unlink()
    assert ask(engine) == 0


def test_the_budget_is_kept(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine(disk_cache_gib=0.001)
    ask(engine)
    disk = tiers_of(engine).disk
    assert disk is not None
    generate(engine, [Prompt(prompt().token_ids[::-1], GREEDY)])
    for _ in range(100):
        if len(list((tmp_path / "kv").rglob("*.kv"))) <= disk.total:
            break
        time.sleep(0.02)  # deletes are not waited for by anybody
    assert disk.total < NUM_CACHED // 16
    assert len(list((tmp_path / "kv").rglob("*.kv"))) <= disk.total


def test_what_cannot_be_is_refused_in_words(open_engine: OpenEngine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"disk_cache_dir: got .*a directory that can be written in"):
        open_engine(disk_cache_dir=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"host_cache_gib: got 60000.0, allowed: at most .*free memory"):
        open_engine(host_cache_gib=60000.0)
    with pytest.raises(ConfigError, match=r"host_cache_gib: got 1e-06, allowed: at least a block"):
        open_engine(host_cache_gib=0.000001)
    with pytest.raises(ConfigError, match=r"host_cache_gib: got 0.0, allowed: more than 0 with disk_cache_dir"):
        CacheConfig(disk_cache_dir="x")
    with pytest.raises(ConfigError, match=r"host_cache_gib: got 1.0, allowed: 0 without prefix_cache"):
        ServeConfig(engine=EngineConfig(prefix_cache=False), cache=CacheConfig(host_cache_gib=1.0))
