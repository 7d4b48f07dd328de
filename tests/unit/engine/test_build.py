"""Settings that the model or the machine cannot meet are refused by name, and what is allowed works at its extremes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lineclear.base.errors import ConfigError
from lineclear.bundled import checkpoint_path
from lineclear.config.components import EngineConfig
from lineclear.engine import free_memory
from lineclear.engine.build import build_engine
from lineclear.evaluation.generate import Prompt, generate
from lineclear.protocol.sampling import SamplingParams

SMALL = EngineConfig(max_total_tokens=4096)


@pytest.mark.parametrize("max_total_tokens", [10**12, 10**30])
def test_a_cache_beyond_the_free_memory_is_refused(max_total_tokens: int) -> None:
    with pytest.raises(ConfigError, match=r"max_total_tokens: .* at most \d+, for which there is free memory on cpu"):
        build_engine(replace(SMALL, max_total_tokens=max_total_tokens), checkpoint_path())


@pytest.mark.parametrize(
    "changes",
    [
        {"max_batch_tokens": 10**15},
        {"max_batch_tokens": 1, "draft_tokens": 0},
        {"max_running": 4096, "max_waiting": 1_000_000},
        {"max_running": 1, "max_waiting": 0},
        {"draft_tokens": 15},
        {"block_size": 1},
        {"seed": 2**63 - 1},
        {"max_model_len": 4096},
    ],
    ids=str,
)
def test_every_allowed_extreme_serves(changes: dict[str, int]) -> None:
    engine = build_engine(replace(SMALL, **changes), checkpoint_path())
    prompt = Prompt((7, 8, 9), SamplingParams(max_tokens=4, temperature=0.8))
    (generation,) = generate(engine, [prompt])
    assert generation.finish_reason in {"length", "stop"}


def test_loading_tells_of_every_tensor() -> None:
    heard: list[tuple[int, int]] = []
    build_engine(SMALL, checkpoint_path(), on_tensor=lambda num_read, num_all: heard.append((num_read, num_all)))
    assert heard == [(number, len(heard)) for number in range(1, len(heard) + 1)]
    assert len(heard) > 50


@pytest.mark.parametrize(("limit", "expected"), [("max", 8000 * 1024), ("5000000", 4_000_000), ("999", 0)])
def test_free_memory_is_the_machines_or_the_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
) -> None:
    for name, text in {
        "meminfo": "MemTotal: 9 kB\nMemAvailable:    8000 kB\n",
        "max": limit,
        "current": "1000000",
    }.items():
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "CGROUP_MAX", tmp_path / "max")
    monkeypatch.setattr(free_memory, "CGROUP_CURRENT", tmp_path / "current")
    assert free_memory.free_memory_bytes(torch.device("cpu")) == expected
    (tmp_path / "max").unlink()
    assert free_memory.free_memory_bytes(torch.device("cpu")) == 8000 * 1024
