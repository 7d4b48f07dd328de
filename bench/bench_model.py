"""Times the model alone against `transformers`: a decode step with its drafts, and a prefill.

Both sides take turns in one process, some steps each, so that whatever else the machine does slows both; the medians of
the turns are compared. A
decode step is what the engine runs for `draft_tokens` drafts: a forward pass over the last token and the drafts, the
draft layer over the same rows, then one draft step for each further draft, with the logits in between. It is worth
`accept_length` tokens; `transformers` makes one token a step.

    python -m bench.bench_model [--model DIR] [--accept-length 2.75] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import DynamicCache, GlmMoeDsaForCausalLM
from transformers.utils import logging as transformers_logging

from lineclear.bundled import checkpoint_path
from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.store import KvStore, KvView
from lineclear.model.batch import Batch, Segment
from lineclear.model.glm import GlmModel, load_model

BLOCK_SIZE = 16
DRAFT_TOKENS = 3
PREFILL_CHUNK = 2048
STEPS_A_TURN = 8
BASELINE_CHUNK = 512
"""In larger pieces the baseline's masks and scores take gigabytes."""


class Ours:
    """The model on a store of its own, for one shape of batch."""

    def __init__(self, model: GlmModel, batch_size: int, capacity: int) -> None:
        blocks_each = -(-capacity // BLOCK_SIZE)
        store = KvStore(
            model.config, batch_size * blocks_each, BLOCK_SIZE, device=torch.device("cpu"), dtype=torch.float32
        )
        self._model = model
        self._cache: KvView = store.view(AlwaysReady())
        self._tables = torch.arange(batch_size * blocks_each).view(batch_size, blocks_each)

    def prefill(self, num_tokens: int) -> None:
        """Compute the same number of tokens for every sequence, the draft layer included."""
        for sequence in range(len(self._tables)):
            for start in range(0, num_tokens, PREFILL_CHUNK):
                batch = self._batch([sequence], start, min(PREFILL_CHUNK, num_tokens - start))
                hidden = self._model.forward(batch, self._cache)
                self._model.draft(batch, hidden, batch.token_ids.roll(-1), self._cache)

    def decode_step(self, context_len: int) -> None:
        """Verify and draft for every sequence."""
        sequences = list(range(len(self._tables)))
        batch = self._batch(sequences, context_len - 1, 1 + DRAFT_TOKENS)
        hidden = self._model.forward(batch, self._cache)
        next_token_ids = self._model.logits(hidden).argmax(-1)
        hidden = self._model.draft(batch, hidden, next_token_ids, self._cache).hidden[:: 1 + DRAFT_TOKENS]
        for step in range(1, DRAFT_TOKENS + 1):
            token_ids = self._model.logits(hidden).argmax(-1)
            if step < DRAFT_TOKENS:
                batch = self._batch(sequences, context_len - 1 + step, 1)
                hidden = self._model.draft(batch, hidden, token_ids, self._cache).hidden

    def _batch(self, sequences: list[int], first: int, num_tokens: int) -> Batch:
        positions = torch.arange(first, first + num_tokens)
        tables = self._tables[sequences]
        slots = tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        segments = tuple(
            Segment(row * num_tokens, (row + 1) * num_tokens, first + num_tokens, table)
            for row, table in enumerate(tables)
        )
        token_ids = torch.randint(0, self._model.config.vocab_size, (len(sequences) * num_tokens,))
        return Batch(token_ids, positions.repeat(len(sequences)), slots.flatten(), segments)


class Baseline:
    """The same checkpoint in `transformers`, for one shape of batch."""

    def __init__(self, model: GlmMoeDsaForCausalLM, batch_size: int) -> None:
        self._model = model
        self._batch_size = batch_size
        self._cache = DynamicCache(config=model.config)

    @torch.inference_mode()
    def prefill(self, num_tokens: int) -> None:
        """Compute the same number of tokens for every sequence."""
        for start in range(0, num_tokens, BASELINE_CHUNK):
            self._forward(self._random(min(BASELINE_CHUNK, num_tokens - start)))

    @torch.inference_mode()
    def decode_step(self) -> None:
        """One token for every sequence."""
        self._forward(self._random(1)).argmax(-1)

    def _random(self, num_tokens: int) -> Tensor:
        return torch.randint(0, self._model.config.vocab_size, (self._batch_size, num_tokens))

    def _forward(self, token_ids: Tensor) -> Tensor:
        return self._model(token_ids, cache=self._cache, use_cache=True, logits_to_keep=1).logits


Figure = tuple[str, float, str]


def decode_figures(
    model: GlmModel, base: GlmMoeDsaForCausalLM, batch_size: int, context_len: int, accept_length: float, rounds: int
) -> Iterator[Figure]:
    """Step times of both sides, and how many tokens ours makes in the time of one of theirs."""
    ours, baseline = Ours(model, batch_size, context_len + 64), Baseline(base, batch_size)
    ours.prefill(context_len)
    baseline.prefill(context_len)
    step_ms, base_ms = _medians_ms([lambda: ours.decode_step(context_len), baseline.decode_step], rounds, STEPS_A_TURN)
    name = f"decode_batch_{batch_size}_at_{context_len}"
    yield f"{name}_step", step_ms, "ms"
    yield f"{name}_baseline_step", base_ms, "ms"
    yield f"{name}_ratio", base_ms * accept_length / step_ms, f"x at accept_length {accept_length}"


def prefill_figures(model: GlmModel, base: GlmMoeDsaForCausalLM, num_tokens: int) -> Iterator[Figure]:
    """Seconds of one prefill on both sides."""
    ours, baseline = Ours(model, 1, num_tokens), Baseline(base, 1)
    ours_ms, base_ms = _medians_ms([lambda: ours.prefill(num_tokens), lambda: baseline.prefill(num_tokens)], 1, 1)
    name = f"prefill_{num_tokens}"
    yield name, ours_ms / 1000, "s"
    yield f"{name}_baseline", base_ms / 1000, "s"
    yield f"{name}_ratio", base_ms / ours_ms, "x"


def _medians_ms(runs: list[Callable[[], None]], rounds: int, steps: int) -> list[float]:
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, own_times in zip(runs, times, strict=True):
            started = time.perf_counter()
            for _ in range(steps):
                run()
            own_times.append(1000 * (time.perf_counter() - started) / steps)
    return [statistics.median(own_times) for own_times in times]


def main() -> None:
    """Print `name: value unit` lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=checkpoint_path())
    parser.add_argument("--accept-length", type=float, default=2.75)
    parser.add_argument("--only", choices=["decode", "long", "prefill"], action="append")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = load_model(options.model, device=torch.device("cpu"), dtype=torch.float32)
    base = GlmMoeDsaForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    parts: dict[str, list[Callable[[], Iterator[Figure]]]] = {
        "decode": [
            lambda: decode_figures(model, base, 1, 1024, options.accept_length, rounds=12),
            lambda: decode_figures(model, base, 16, 1024, options.accept_length, rounds=6),
        ],
        "prefill": [lambda: prefill_figures(model, base, 16_384)],
        "long": [lambda: decode_figures(model, base, 1, 32_768, options.accept_length, rounds=2)],
    }
    figures: list[Figure] = []
    for part in options.only or parts:
        for measure in parts[part]:
            for figure in measure():
                print(f"{figure[0]}: {figure[1]:.4g} {figure[2]}", flush=True)
                figures.append(figure)
    if options.json:
        options.json.write_text(json.dumps({name: value for name, value, _ in figures}, indent=2))


if __name__ == "__main__":
    main()
