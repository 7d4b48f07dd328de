"""One engine and groups of ranks that are asked the same: a tiny random checkpoint with shared selections."""

import atexit
import functools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from lineclear.base.ids import SequenceId
from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.engine import Engine
from lineclear.parallel.build import KvLayout, RankConfig
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence as EngineSequence
from lineclear.testing.ranks.group import GroupConfig, RankGroup
from tests.golden.checkpoints import GLM_5_2_TYPES, tiny_checkpoint

TOPK = 32
ENGINE = EngineConfig(max_total_tokens=4096, draft_tokens=3, max_batch_tokens=64, num_threads=1, max_model_len=512)
STAGING_BYTES = 1 << 20
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=3)
WARM = SamplingParams(max_tokens=6, temperature=0.9, seed=5, ignore_eos=True, logprobs=3)


@functools.cache
def checkpoint() -> Path:
    """Indexers in layers 0 and 2 and the draft layer; draft steps share their selection."""
    torch.set_num_threads(1)
    folder = tempfile.TemporaryDirectory(prefix="lineclear-ranks-")
    atexit.register(folder.cleanup)
    return tiny_checkpoint(**GLM_5_2_TYPES).write(Path(folder.name))


@dataclass(frozen=True)
class Asked:
    token_ids: tuple[int, ...]
    sampling: SamplingParams = GREEDY


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    drafts: tuple[list[int], list[int]] = ([], [])


@functools.cache
def rounds() -> tuple[tuple[Asked, ...], ...]:
    """Two rounds: contexts around a block and around TOPK, then the same ones longer, so that each has its own hit."""
    random = Random(3)
    text = [random.randrange(3, 320) for _ in range(2000)]
    lengths = (2, 16, 30, 33, 70, 200)
    first = [tuple(text[200 * idx : 200 * idx + length]) for idx, length in enumerate(lengths)]
    grown = [prompt + tuple(text[1500 + idx : 1500 + idx + 5 + 11 * idx]) for idx, prompt in enumerate(first)]
    asked = [
        [Asked(prompt, WARM if idx == 3 else GREEDY) for idx, prompt in enumerate(each)] for each in (first, grown)
    ]
    return tuple(tuple(each) for each in asked)


def ask(engine: Engine, asked: Sequence[Asked], first_id: int = 0) -> list[Answer]:
    """Run all together to their ends."""
    answers = {SequenceId(first_id + idx): Answer() for idx in range(len(asked))}
    for sequence_id, each in zip(answers, asked, strict=True):
        engine.submit(EngineSequence(sequence_id, each.token_ids, each.sampling))
    while engine.has_work or engine.wait_for_copies():
        for update in engine.step():
            answer = answers[update.sequence.sequence_id]
            answer.token_ids += update.token_ids
            answer.logprobs += update.logprobs or []
            answer.finish_reason, answer.error = update.finish_reason or answer.finish_reason, update.error
            counts = update.sequence.draft_counts
            answer.drafts = (list(counts.proposed_by_position), list(counts.accepted_by_position))
    engine.check()
    return list(answers.values())


def ask_rounds(engine: Engine) -> list[list[Answer]]:
    return [ask(engine, asked, 100 * idx) for idx, asked in enumerate(rounds())]


@functools.cache
def alone(max_batch_tokens: int = 64, draft_tokens: int = 3) -> list[list[Answer]]:
    """What one rank answers."""
    config = replace(ENGINE, max_batch_tokens=max_batch_tokens, draft_tokens=draft_tokens)
    return ask_rounds(build_engine(config, checkpoint()))


@contextmanager
def group(size: int, kv_layout: KvLayout, engine: EngineConfig = ENGINE, **changes: Any) -> Iterator[RankGroup]:
    ranks = RankConfig(kv_layout=kv_layout, staging_bytes=changes.pop("staging_bytes", STAGING_BYTES))
    built = RankGroup(GroupConfig(size=size, ranks=ranks, engine=engine, **changes), checkpoint())
    try:
        yield built
    finally:
        built.close()
