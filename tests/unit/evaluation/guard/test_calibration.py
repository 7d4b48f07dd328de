"""Baselines are learned from what the real engine does, and fit the model that they were learned from."""

from dataclasses import replace

import pytest

from lineclear.base.errors import ConfigError
from lineclear.bundled import checkpoint_path
from lineclear.config.components import EngineConfig
from lineclear.evaluation.guard.calibration import calibrate, record
from lineclear.evaluation.guard.traffic import TrafficSize, healthy_prompts
from lineclear.gateway.served_model import load_text_assets
from lineclear.guard.baselines import decode_baselines, encode_baselines
from lineclear.model.digest import model_digest

CONFIG = EngineConfig(max_total_tokens=16_384, draft_tokens=3)
SIZE = TrafficSize(num_edits=1, num_code=1, num_lists=1)


def test_what_is_learned_is_read_again_for_the_same_model_only() -> None:
    modes: list[tuple[str, int]] = []
    learned = calibrate(
        checkpoint_path(), CONFIG, SIZE, alarms_per_million=10.0, on_mode=lambda *mode: modes.append(mode)
    )
    assert modes == [("greedy", 3), ("sampled", 3)]
    content = encode_baselines(learned)
    model = model_digest(checkpoint_path())
    assert decode_baselines(content, path="x", model=model, draft_tokens=3) == learned
    with pytest.raises(ConfigError, match="baselines of the served model, other"):
        decode_baselines(content, path="x", model="other", draft_tokens=3)


def test_each_sequence_is_recorded_with_all_its_tokens() -> None:
    prompts = healthy_prompts(load_text_assets(checkpoint_path()), SIZE, temperature=0.0)
    healthy = record(checkpoint_path(), CONFIG, prompts)
    assert [each.num_prompt_tokens for each in healthy] == [len(prompt.token_ids) for prompt in prompts]
    for each, prompt in zip(healthy, prompts, strict=True):
        assert tuple(each.tokens[: each.num_prompt_tokens]) == prompt.token_ids
        num_output_tokens = len(each.tokens) - each.num_prompt_tokens
        assert num_output_tokens - 1 <= each.verifies[-1].num_tokens <= num_output_tokens
        assert all(verify.num_accepted <= verify.num_proposed <= 3 for verify in each.verifies)


def test_traffic_without_drafts_teaches_nothing() -> None:
    with pytest.raises(ConfigError, match="draft_tokens"):
        calibrate(
            checkpoint_path(), replace(CONFIG, draft_tokens=0), SIZE, alarms_per_million=1.0, on_mode=lambda *_: None
        )
