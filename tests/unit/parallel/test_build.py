"""Ranks that cannot work together, or not at all, are refused at the start, with the numbers."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lineclear.base.errors import ConfigError, RankLostError
from lineclear.bundled import checkpoint_path
from lineclear.config.components import EngineConfig
from lineclear.engine.build import build_parts
from lineclear.parallel import facts
from lineclear.parallel.build import RankConfig, RankMaking
from lineclear.parallel.communicator import Communicator
from lineclear.parallel.meter import Meter
from tests.contract.rank_worlds import run_local

ENGINE = EngineConfig(max_total_tokens=2048, max_model_len=1000, num_threads=1)
SPLIT = RankConfig(kv_layout="layersplit", staging_bytes=1 << 22)
DEADLINE_SECONDS = 20.0


def refusals(size: int, engines: dict[int, EngineConfig], ranks: dict[int, RankConfig]) -> list[str | None]:
    def start(communicator: Communicator, _device: torch.device) -> str | None:
        engine = engines.get(communicator.rank, ENGINE)
        try:
            making = RankMaking(ranks.get(communicator.rank, SPLIT), engine, checkpoint_path(), communicator, Meter())
            build_parts(engine, checkpoint_path(), pass_making=making)
        except ConfigError as error:
            return str(error)
        return None

    return run_local(start, size, DEADLINE_SECONDS)


def test_ranks_that_fit_start() -> None:
    assert refusals(2, {}, {}) == [None, None]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"draft_tokens": 2}, "draft_tokens: got '2 on cp_rank 1', allowed: 3, as on cp_rank 0"),
        ({"dtype": "bf16"}, "dtype: got 'bf16 on cp_rank 1', allowed: fp32, as on cp_rank 0"),
        ({"seed": 5}, "seed: got '5 on cp_rank 1', allowed: 0, as on cp_rank 0"),
        ({"block_size": 8}, "block_size: got '8 on cp_rank 1', allowed: 16, as on cp_rank 0"),
    ],
    ids=lambda each: str(each)[:16],
)
def test_another_setting_is_refused_by_all_and_named(changes: dict[str, Any], told: str) -> None:
    assert refusals(3, {1: replace(ENGINE, **changes)}, {}) == [told] * 3


def test_another_layout_or_staging_is_refused() -> None:
    replicated = RankConfig(kv_layout="replicated", staging_bytes=1 << 22)
    told = "kv_layout: got 'replicated on cp_rank 1', allowed: layersplit, as on cp_rank 0"
    assert refusals(2, {}, {1: replicated}) == [told] * 2
    told = f"staging_bytes: got '7 on cp_rank 1', allowed: {1 << 22}, as on cp_rank 0"
    assert refusals(2, {}, {1: replace(SPLIT, staging_bytes=7)}) == [told] * 2


def test_another_checkpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(["aaaa", "bbbb"])
    monkeypatch.setattr(facts, "model_digest", lambda _directory: next(digests))
    first, second = refusals(2, {}, {})
    assert first == second
    assert first is not None
    assert first.startswith("model: got ")
    assert "on cp_rank 1" in first


def test_more_ranks_than_layers_are_refused() -> None:
    told = "cp: got 6, allowed: at most 5 with layersplit: the model has so many layers of KV"
    assert refusals(6, {}, {}) == [told] * 6
    replicated = dict.fromkeys(range(6), RankConfig(kv_layout="replicated"))
    assert refusals(6, {}, replicated) == [None] * 6


def test_staging_without_room_for_the_longest_sequence_is_refused() -> None:
    needed = (208 + 64) * 4 * 16 * (63 + 1)
    tight = dict.fromkeys(range(2), replace(SPLIT, staging_bytes=needed - 1))
    told = (
        f"staging_bytes: got {needed - 1}, allowed: at least {needed}, for one sequence of 1000 tokens at 1088 B each"
    )
    assert refusals(2, {}, tight) == [told] * 2
    assert refusals(2, {}, dict.fromkeys(range(2), replace(SPLIT, staging_bytes=needed))) == [None] * 2


def test_a_rank_that_does_not_come_is_told_of_within_the_deadline() -> None:
    def start(communicator: Communicator, _device: torch.device) -> object:
        if communicator.rank == 1:
            return None
        with pytest.raises(RankLostError, match="cp_rank 1"):
            RankMaking(SPLIT, ENGINE, checkpoint_path(), communicator, Meter())
        return "told"

    assert run_local(start, 2, 0.5) == ["told", None]
