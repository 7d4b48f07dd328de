"""The baseline: Hugging Face `transformers` with the same checkpoint, prompts and threads.

Greedy, with its own KV cache, one token a step (it drafts for no checkpoint of this type). Long prompts are fed in
chunks: in one piece its attention masks would not fit the memory.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import GlmMoeDsaForCausalLM
from transformers.utils import logging as transformers_logging

CHUNK_LEN = 512


@dataclass(frozen=True)
class BaselineRun:
    """Times of one run and its tokens, one list for each prompt."""

    prefill_seconds: float
    decode_seconds: float
    token_ids: list[list[int]]


class Baseline:
    """A checkpoint in `transformers`, fp32 on the CPU."""

    def __init__(self, model_dir: Path) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self._model = GlmMoeDsaForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()

    @torch.inference_mode()
    def run(self, prompts: list[list[int]], num_tokens: int) -> BaselineRun:
        """Continue prompts of one length by `num_tokens` each."""
        input_ids = torch.tensor(prompts)
        started = time.perf_counter()
        cache = None
        for start in range(0, input_ids.shape[1], CHUNK_LEN):
            output = self._model(input_ids[:, start : start + CHUNK_LEN], cache=cache, use_cache=True, logits_to_keep=1)
            cache = output.cache
        next_ids = output.logits[:, -1:].argmax(-1)
        prefilled = time.perf_counter()
        columns = [next_ids]
        for _ in range(num_tokens - 1):
            output = self._model(next_ids, cache=cache, use_cache=True)
            next_ids = output.logits[:, -1:].argmax(-1)
            columns.append(next_ids)
        ended = time.perf_counter()
        return BaselineRun(prefilled - started, ended - prefilled, torch.cat(columns, dim=1).tolist())
