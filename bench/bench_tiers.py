"""Times first tokens with a prompt's KV on each tier, and replays sessions that the device cannot keep.

All ratios are of one run on one machine, on `lineclear-tiny`. A 32k-token prompt is asked cold, then again with its KV
on the device, in host memory, and on disk by an engine that has just started. The replay takes the requests of real
coding agents (prefix structure and order; tokens are made up, 16 times fewer), with a device pool of a quarter of
what they need, and compares the share of prompt tokens that were found with that of a pool that keeps everything.

    LINECLEAR_DATA=../shared python -m bench.bench_tiers [--only NAME ...] [--json FILE]
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.sessions import BLOCK_SIZE, KV_BYTES_PER_TOKEN, Replay, archive_path, load_replay
from lineclear.base.ids import SequenceId
from lineclear.bundled import checkpoint_path
from lineclear.bundled.corpus import load_corpus
from lineclear.config.components import CacheConfig, EngineConfig
from lineclear.engine.build import build_engine, kv_bytes_per_token
from lineclear.engine.build_tiers import TierMaking
from lineclear.engine.engine import Engine
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.gateway.tokenization import load_tokenization
from lineclear.kv.disk_format import HEADER_BYTES
from lineclear.kv.pool import BlockPool
from lineclear.kv.radix import RadixTree
from lineclear.kv.tiers import Tiers, TiersConfig
from lineclear.model.config import load_config
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence

PROMPT_LEN = 32_768
NUM_TURNS = 9
NUM_OVERLAP_TURNS = 5
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)

WORKING_SET_RATIO = 4


class Bench:
    """An engine, and a hand on its prefix tree: eviction by hand stands for the requests of others."""

    def __init__(self, max_total_tokens: int, cache: CacheConfig | None) -> None:
        config = EngineConfig(max_total_tokens=max_total_tokens, draft_tokens=3)
        making = TierMaking(make_plans=self._make_plans)
        self._tree: RadixTree | None = None
        self._num_asked = 0
        self.engine: Engine = build_engine(config, checkpoint_path(), cache=cache, tier_making=making)
        gc.collect()
        gc.freeze()  # as a worker does

    def _make_plans(self, config: TiersConfig, pool: BlockPool, tree: RadixTree) -> Tiers:
        self._tree = tree
        return Tiers(config, pool, tree)

    def ask(self, prompt: list[int]) -> tuple[float, Sequence]:
        """Seconds to the first token."""
        self._num_asked += 1
        sequence = Sequence(SequenceId(self._num_asked), prompt, ONE_TOKEN)
        started = time.perf_counter()
        self.engine.submit(sequence)
        while not sequence.output_token_ids:
            if not self.engine.has_work:
                self.engine.wait_for_copies()
            self.engine.step()
        seconds = time.perf_counter() - started
        self.settle()
        return seconds, sequence

    def settle(self) -> None:
        """Let copies end."""
        while self.engine.has_work or self.engine.wait_for_copies():
            self.engine.step()

    def evict(self) -> None:
        """Empty the device."""
        assert self._tree is not None
        self._tree.evict(10**9)

    def in_turns(self, prompt: list[int]) -> tuple[float, float]:
        """Medians of the seconds to a first token, with the prompt on the device and with it in host memory."""
        on_device: list[float] = []
        on_host: list[float] = []
        for _ in range(NUM_TURNS):
            on_device.append(self.ask(prompt)[0])
            self.evict()
            on_host.append(self.ask(prompt)[0])
        return statistics.median(on_device), statistics.median(on_host)


def first_tokens() -> Iterator[Figure]:
    """Time to the first token of a 32k-token prompt, by where its KV is; and what its copies cost."""
    prompt = corpus_tokens()[:PROMPT_LEN]
    with tempfile.TemporaryDirectory(prefix="lineclear-bench-") as folder:
        cache = CacheConfig(host_cache_gib=0.25, disk_cache_dir=folder, prefetch_policy="wait")
        bench = Bench(PROMPT_LEN + 4096, cache)
        cold, _ = bench.ask(prompt)
        before = bench.engine.statistics()
        on_device, on_host = bench.in_turns(prompt)
        after = bench.engine.statistics()
        bench.engine.close()
        on_disk, num_disk_tokens = _from_disk(cache, prompt)
        yield Figure("ttft_32k_recomputed", cold, "s")
        yield Figure("ttft_32k_device_hit", on_device, "s")
        yield Figure("ttft_32k_host_hit", on_host, "s")
        yield Figure("ttft_32k_disk_hit", on_disk, "s")
        yield Figure("ttft_host_against_recomputed", on_host / cold)
        yield Figure("ttft_host_against_device", on_host / on_device, "x")
        yield Figure("ttft_disk_against_recomputed", on_disk / cold)
        yield Figure("disk_hit_tokens", num_disk_tokens)
        yield from _rates(before.copies, after.copies)
        yield from _bytes_per_token(bench.engine, Path(folder))


def _from_disk(cache: CacheConfig, prompt: list[int]) -> tuple[float, int]:
    seconds: list[float] = []
    num_tokens = 0
    for _ in range(3):
        bench = Bench(PROMPT_LEN + 4096, cache)
        seconds.append(bench.ask(prompt)[0])
        tiers = bench.engine.statistics().scheduler.tiers
        num_tokens = 0 if tiers is None else tiers.disk_hit_tokens
        bench.engine.close()
    return statistics.median(seconds), num_tokens


def _rates(before: Any, after: Any) -> Iterator[Figure]:  # noqa: ANN401 - CopyStatistics, which tests know
    num_bytes = after.load_bytes - before.load_bytes
    yield Figure("load_rate", num_bytes / (after.load_seconds - before.load_seconds) / 1e9, "GB/s")
    yield Figure("offload_rate", after.offload_bytes / after.offload_seconds / 1e9, "GB/s")


def _bytes_per_token(engine: Engine, folder: Path) -> Iterator[Figure]:
    """What a cached token takes on each tier, against the layout's arithmetic."""
    expected = kv_bytes_per_token(load_config(checkpoint_path()), torch.float32)
    yield Figure("bytes_per_token_by_layout", expected, "B")
    yield Figure("bytes_per_token_on_device", engine.store.layout.block_bytes / BLOCK_SIZE, "B")
    copies, tiers = engine.statistics().copies, engine.statistics().scheduler.tiers
    if copies is not None and tiers is not None:
        yield Figure("bytes_per_token_on_host", copies.offload_bytes / tiers.num_offloaded_blocks / BLOCK_SIZE, "B")
    sizes = {path.stat().st_size for path in folder.rglob("*.kv")}
    yield Figure("bytes_per_token_on_disk", statistics.mean(sizes) / BLOCK_SIZE, "B")
    yield Figure("bytes_per_token_of_file_header", HEADER_BYTES / BLOCK_SIZE, "B")


def overlap() -> Iterator[Figure]:
    """How much of a load is hidden behind the pass: half a prompt is loaded, half of it computed."""
    tokens = corpus_tokens()
    prompt, num_shared = tokens[:16_384], 8_192
    bench = Bench(40_000, CacheConfig(host_cache_gib=0.25))
    bench.ask(prompt[:num_shared])
    hidden: list[float] = []
    for turn in range(NUM_OVERLAP_TURNS):
        bench.evict()
        before = bench.engine.statistics().copies
        start = 20_000 + turn * 2_048
        bench.ask(prompt[:num_shared] + tokens[start : start + 2_048])
        after = bench.engine.statistics().copies
        if before is not None and after is not None:
            running = after.load_seconds - before.load_seconds
            hidden.append(1 - (after.wait_seconds - before.wait_seconds) / running)
    bench.engine.close()
    yield Figure("load_hidden_behind_compute", statistics.median(hidden))


def replay() -> Iterator[Figure]:
    """Share of prompt tokens found by sessions that need four times the device pool."""
    sessions = load_replay(archive_path(os.environ["LINECLEAR_DATA"]))
    pool_tokens = sessions.pool_tokens(WORKING_SET_RATIO)
    host_gib = 1.3 * sessions.working_set_tokens * KV_BYTES_PER_TOKEN / 2**30
    yield Figure("replay_requests", len(sessions.prompts))
    yield Figure("replay_working_set", sessions.working_set_tokens, "tokens")
    yield Figure("replay_working_set_ratio", sessions.working_set_tokens / pool_tokens, "x the device pool")
    unbounded, base_ttft = _replay(sessions, 2 * sessions.working_set_tokens, None)
    for policy in ("write_through", "write_through_selective", "write_back"):
        cache = CacheConfig(host_cache_gib=host_gib, offload_policy=policy)
        share, ttft = _replay(sessions, pool_tokens, cache)
        yield Figure(f"replay_hit_rate_{policy}", share)
        yield Figure(f"replay_hit_rate_{policy}_below_unbounded", 100 * (unbounded - share), "points")
        yield Figure(f"replay_ttft_{policy}_against_unbounded", ttft / base_ttft, "x")
    device_only, ttft = _replay(sessions, pool_tokens, None)
    yield Figure("replay_hit_rate_unbounded", unbounded)
    yield Figure("replay_hit_rate_device_only", device_only)
    yield Figure("replay_ttft_device_only_against_unbounded", ttft / base_ttft, "x")


def _replay(sessions: Replay, pool_tokens: int, cache: CacheConfig | None) -> tuple[float, float]:
    """The hit rate, and the mean time to first token."""
    bench = Bench(pool_tokens, cache)
    seconds = [bench.ask(prompt)[0] for prompt in sessions.prompts]
    figures = bench.engine.statistics().scheduler
    bench.engine.close()
    return figures.cached_prompt_tokens / figures.prompt_tokens, statistics.mean(seconds)


def corpus_tokens() -> list[int]:
    """Enough tokens of the held-out corpus."""
    tokenization = load_tokenization(checkpoint_path())
    tokens = [id_ for text in load_corpus().held_out for id_ in tokenization.encode_text(text)]
    return tokens * (1 + 2 * PROMPT_LEN // len(tokens))


MEASUREMENTS = {"first_tokens": first_tokens, "overlap": overlap, "replay": replay}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_tiers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    print_figures((figure for name in arguments.only for figure in MEASUREMENTS[name]()), arguments.json)


if __name__ == "__main__":
    main()
