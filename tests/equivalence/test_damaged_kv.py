"""What is not finite never becomes an answer, neither from KV nor from weights, and harms nobody beside it."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lineclear.base.errors import CheckpointError
from lineclear.bundled import checkpoint_path
from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_engine
from lineclear.engine.engine import Engine
from lineclear.evaluation.generate import Generation, Prompt, generate
from lineclear.model.checkpoint import SINGLE_FILE
from lineclear.model.config import load_config
from lineclear.protocol.sampling import SamplingParams

CONFIG = EngineConfig(max_total_tokens=8192, max_batch_tokens=512)
SUSPECT = tuple(range(100, 260))
HEALTHY = tuple(range(300, 460))
MODEL = load_config(checkpoint_path())


def damage(engine: Engine, block_id: int, *, layer: int, value: float) -> None:
    """Overwrite the latent of a block's first token."""
    slot = torch.tensor([block_id * CONFIG.block_size])
    engine.store.write(layer, "latent", slot, torch.full((1, MODEL.latent_width), value))


def ask(engine: Engine, *prompts: tuple[int, ...], temperature: float) -> tuple[list[Generation], list[int]]:
    """What comes of the prompts, and the blocks that the first one had."""
    block_ids: list[int] = []

    def note_blocks(_engine: Engine, generations: list[Generation]) -> None:
        block_ids[:] = list(generations[0].sequence.block_table) or block_ids

    sampling = SamplingParams(max_tokens=12, temperature=temperature, seed=3, ignore_eos=True, logprobs=2)
    return generate(engine, [Prompt(p, sampling) for p in prompts], after_step=note_blocks), block_ids


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_kv_that_is_not_finite_ends_its_readers_with_an_error_and_is_not_read_again(
    temperature: float, value: float
) -> None:
    engine = build_engine(CONFIG, checkpoint_path())
    (suspect, healthy), block_ids = ask(engine, SUSPECT, HEALTHY, temperature=temperature)
    damage(engine, block_ids[3], layer=1, value=value)
    (damaged, beside), _ = ask(engine, SUSPECT, HEALTHY, temperature=temperature)
    assert (damaged.finish_reason, damaged.token_ids) == ("error", [])
    assert (beside.finish_reason, beside.token_ids) == ("length", healthy.token_ids)
    assert damaged.sequence.num_cached_tokens > 0
    (again,), _ = ask(engine, SUSPECT, temperature=temperature)
    assert (again.token_ids, again.sequence.num_cached_tokens) == (suspect.token_ids, 0)
    assert engine.statistics().scheduler.num_damaged == 1


def test_what_damage_has_left_in_free_blocks_harms_nobody() -> None:
    """Neither in block 0, with which tables are padded, nor in the part of a block that a sequence has not come to."""
    expected = [each.token_ids for each in ask(build_engine(CONFIG, checkpoint_path()), (5, 6, 7), temperature=0.0)[0]]
    engine = build_engine(CONFIG, checkpoint_path())
    for layer in range(MODEL.num_cache_layers):
        slots = torch.arange(engine.store.num_blocks * CONFIG.block_size)
        engine.store.write(layer, "latent", slots, torch.full((len(slots), MODEL.latent_width), math.nan))
    (short, long), _ = ask(engine, (5, 6, 7), SUSPECT, temperature=0.0)
    assert (short.finish_reason, long.finish_reason) == ("length", "length")
    assert [short.token_ids] == expected


def test_a_draft_layer_that_is_not_finite_costs_drafts_and_no_answer() -> None:
    engine = build_engine(CONFIG, checkpoint_path())
    (whole,), block_ids = ask(engine, SUSPECT, temperature=0.8)
    damage(engine, block_ids[3], layer=MODEL.num_hidden_layers, value=math.nan)
    (beside,), _ = ask(engine, SUSPECT, temperature=0.8)
    assert beside.finish_reason == "length"
    assert len(beside.token_ids) == len(whole.token_ids)


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    shutil.copytree(checkpoint_path(), tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / SINGLE_FILE)
    name = "model.layers.1.self_attn.o_proj.weight"
    weights[name][0, 0] = math.nan
    save_file(weights, tmp_path / SINGLE_FILE, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=name):
        build_engine(CONFIG, tmp_path)
