"""The speed figures: decode, prefill, prefix hits and peak memory."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from bench import ours
from bench.baseline import Baseline
from bench.memory import peak_bytes_beyond_start
from lineclear.bundled import checkpoint_path
from lineclear.bundled.corpus import load_corpus
from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.engine import Engine
from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.store import KvStore
from lineclear.evaluation.figures import Figure
from lineclear.gateway.tokenization import load_tokenization


class Speed:
    """Runs one figure at a time; each compares two runs on the same prompts, one after the other.

    Args:
        model_dir: the checkpoint of both sides.
        num_threads: of both sides.
    """

    def __init__(self, model_dir: Path | None = None, *, num_threads: int = 1) -> None:
        self._model_dir = model_dir or checkpoint_path()
        self._num_threads = num_threads
        torch.set_num_threads(num_threads)
        tokenization = load_tokenization(self._model_dir)
        self._tokens = [id_ for text in load_corpus().held_out for id_ in tokenization.encode_text(text)]

    @property
    def figures(self) -> dict[str, Callable[[], Iterator[Figure]]]:
        """Every measurement by its name."""
        return {
            "decode_batch_1": lambda: self.decode(batch_size=1, prompt_len=512, num_tokens=256),
            "decode_batch_16": lambda: self.decode(batch_size=16, prompt_len=512, num_tokens=128),
            "decode_32k": lambda: self.decode(batch_size=1, prompt_len=32_768, num_tokens=48),
            "prefill_16k": lambda: self.prefill(prompt_len=16_384),
            "prefix_hit_16k": lambda: self.prefix_hit(prompt_len=16_384, hit_share=0.95),
            "short_beside_long": lambda: self.short_beside_long(short_len=64, long_len=32_768),
            "batch_invariant_cost": self.batch_invariant_cost,
            "prefill_memory": lambda: self.prefill_memory((16_384, 32_768, 65_536)),
        }

    def decode(self, *, batch_size: int, prompt_len: int, num_tokens: int) -> Iterator[Figure]:
        """Tokens per second after the first token."""
        name = f"decode_batch_{batch_size}_at_{prompt_len}"
        prompts = self._prompts(batch_size, prompt_len)
        base = Baseline(self._model_dir).run(prompts, num_tokens)
        run = ours.run(self._engine(), prompts, num_tokens)
        base_rate = batch_size * (num_tokens - 1) / base.decode_seconds
        rate = run.num_decoded / run.decode_seconds
        pairs = [
            pair
            for mine, theirs in zip(run.token_ids, base.token_ids, strict=True)
            for pair in zip(mine, theirs, strict=True)
        ]
        yield Figure(f"{name}_ratio", rate / base_rate, "x")
        yield Figure(f"{name}", rate, "tokens/s")
        yield Figure(f"{name}_transformers", base_rate, "tokens/s")
        yield Figure(f"{name}_accept_length", run.accept_length, "tokens/verify")
        yield Figure(f"{name}_same_tokens", sum(mine == theirs for mine, theirs in pairs) / len(pairs))

    def prefill(self, *, prompt_len: int) -> Iterator[Figure]:
        """Time to the first token of one long prompt."""
        prompts = self._prompts(1, prompt_len)
        base = Baseline(self._model_dir).run(prompts, 1)
        run = ours.run(self._engine(), prompts, 1)
        yield Figure(f"prefill_{prompt_len}_ratio", base.prefill_seconds / run.prefill_seconds, "x")
        yield Figure(f"prefill_{prompt_len}", prompt_len / run.prefill_seconds, "tokens/s")
        yield Figure(f"prefill_{prompt_len}_transformers", prompt_len / base.prefill_seconds, "tokens/s")

    def prefix_hit(self, *, prompt_len: int, hit_share: float) -> Iterator[Figure]:
        """Time to the first token, cold against a prefix hit, on one engine."""
        (prompt,) = self._prompts(1, prompt_len)
        shared_len = int(prompt_len * hit_share)
        other = prompt[:shared_len] + self._tokens[-(prompt_len - shared_len) :]
        engine = self._engine()
        cold = ours.run(engine, [prompt], 1)
        hit = ours.run(engine, [other], 1)
        name = f"prefix_hit_{hit_share:.0%}_of_{prompt_len}".replace("%", "pct")
        yield Figure(f"{name}_ttft_ratio", cold.prefill_seconds / hit.prefill_seconds, "x")
        yield Figure(f"{name}_ttft", hit.prefill_seconds * 1000, "ms")

    def short_beside_long(self, *, short_len: int, long_len: int) -> Iterator[Figure]:
        """Time to the first token of a prompt that comes while a long one is prefilled, against waiting for that."""
        long, short = self._prompts(1, long_len)[0], self._tokens[-short_len:]
        seconds = ours.first_tokens_beside(self._engine(), long, short)
        name = f"prompt_of_{short_len}_beside_{long_len}"
        yield Figure(f"{name}_ttft_ratio", seconds.long / seconds.short, "x")
        yield Figure(f"{name}_ttft", seconds.short * 1000, "ms")

    def batch_invariant_cost(self) -> Iterator[Figure]:
        """Time of one run with batch-invariant mode against the same without it."""
        prompts = self._prompts(16, 512)
        seconds: dict[bool, float] = {}
        for batch_invariant in (False, True, False, True):
            engine = self._engine(batch_invariant=batch_invariant)
            started = time.perf_counter()
            ours.run(engine, prompts, 64)
            seconds[batch_invariant] = min(seconds.get(batch_invariant, float("inf")), time.perf_counter() - started)
        yield Figure("batch_invariant_cost_ratio", seconds[True] / seconds[False], "x")

    def prefill_memory(self, prompt_lens: tuple[int, ...]) -> Iterator[Figure]:
        """Peak memory beyond weights and pool while one prompt is prefilled."""
        for prompt_len in prompt_lens:
            prompts = self._prompts(1, prompt_len)
            engine = self._engine()
            _fill(engine.store)
            with peak_bytes_beyond_start() as peak:
                ours.run(engine, prompts, 1)
            yield Figure(f"prefill_memory_at_{prompt_len}", peak.num_bytes / 2**20, "MiB")

    def _engine(self, *, batch_invariant: bool = True) -> Engine:
        config = EngineConfig(num_threads=self._num_threads, batch_invariant=batch_invariant, max_total_tokens=131_072)
        return build_engine(config, self._model_dir)

    def _prompts(self, count: int, length: int) -> list[list[int]]:
        """Windows of held-out code, repeated where there is too little."""
        tokens = self._tokens * (count * length // len(self._tokens) + 1)
        return [tokens[start : start + length] for start in range(0, count * length, length)]


def _fill(store: KvStore) -> None:
    """Write every slot once, so that the pool's memory is resident before anything is measured."""
    slots = torch.arange(store.num_blocks * store.block_size)
    for layer, part in store.parts:
        for some in slots.split(65_536):
            width = store.read(layer, part, AlwaysReady()).shape[1]
            store.write(layer, part, some, torch.zeros(len(some), width))
