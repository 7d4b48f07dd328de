"""What ranks must have in common, compared before they begin: whoever differs is named, and nobody starts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from lineclear.base.errors import ConfigError
from lineclear.config.components import EngineConfig
from lineclear.engine.build_tiers import processor_name
from lineclear.model.digest import model_digest
from lineclear.parallel.accord import Accord


def rank_facts(config: EngineConfig, model_dir: Path) -> dict[str, str]:
    """All that tokens depend on: ranks choose them alike, each by itself.

    Of threads it matters whether there is more than one (`kernels/invariant.py`, `silu_mul`).
    """
    return {
        "model": model_digest(model_dir),
        "dtype": config.dtype,
        "block_size": str(config.block_size),
        "draft_tokens": str(config.draft_tokens),
        "batch_invariant": str(config.batch_invariant),
        "seed": str(config.seed),
        "max_total_tokens": str(config.max_total_tokens),
        "max_model_len": str(config.max_model_len),
        "threads": "one" if config.num_threads == 1 else "several",
        "torch": torch.__version__,
        "device": processor_name(torch.device(config.device)),
    }


def require_same_facts(accord: Accord, facts: Mapping[str, str], device: torch.device) -> None:
    """Compare all ranks' facts.

    Raises: ConfigError, the same on all ranks, naming the first rank that differs from rank 0, and in what.
    """
    payload = json.dumps(dict(facts), sort_keys=True).encode()
    all_facts = [cast("dict[str, str]", json.loads(each)) for each in exchange(accord, payload, device)]
    for rank, theirs in enumerate(all_facts):
        for name in sorted({*theirs, *all_facts[0]}):
            if theirs.get(name) != all_facts[0].get(name):
                raise ConfigError(
                    name, f"{theirs.get(name)} on cp_rank {rank}", f"{all_facts[0].get(name)}, as on cp_rank 0"
                )


def smallest(accord: Accord, number: int, device: torch.device) -> int:
    """The smallest of all ranks' numbers. Raises: RankError."""
    (numbers,) = accord.gather([torch.tensor([[number]], device=device)], [accord.ones])
    return int(numbers.min())


def exchange(accord: Accord, payload: bytes, device: torch.device) -> list[bytes]:
    """Give every rank's bytes to all, rank 0's first. Raises: RankError."""
    (lengths,) = accord.gather([torch.tensor([[len(payload)]], device=device)], [accord.ones])
    counts = cast("list[int]", lengths.squeeze(1).tolist())
    (joined,) = accord.gather([_as_rows(payload, device)], [counts])
    return [rows.cpu().numpy().tobytes() for rows in joined.split(counts)]


def _as_rows(payload: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8).unsqueeze(1).to(device)
