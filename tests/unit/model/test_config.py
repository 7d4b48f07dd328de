"""Which configurations load, and what is said about those that do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from lineclear.base.errors import CheckpointError
from lineclear.model.config import GlmConfig, load_config
from tests.golden.checkpoints import BASE_CONFIG, FP8_QUANTIZATION


def load(directory: Path, changes: dict[str, Any], generation: dict[str, Any] | None = None) -> GlmConfig:
    config = {name: value for name, value in (BASE_CONFIG | changes).items() if value is not ...}
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return load_config(directory)


def test_an_indexer_in_every_layer_without_the_later_fields(tmp_path: Path) -> None:
    config = load(tmp_path, {})
    assert config.indexer_types == ("full",) * 4
    assert config.mlp_layer_types == ("dense", "sparse", "sparse", "sparse")
    assert config.num_cache_layers == 5
    assert config.rope_theta == 10_000
    assert not config.index_share_for_mtp_iteration
    assert config.fp8_block_shape is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"indexer_types": ["full", "shared", "shared", "full"]}, "FSSF"),
        ({"indexer_types": ["full", "shared", "shared", "full"], "index_topk_pattern": "FFFF"}, "FSSF"),
        ({"index_topk_pattern": "FFSS", "index_topk_freq": 2}, "FFSS"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3, "num_hidden_layers": 8}, "FFFSSSFS"),
        ({"index_topk_freq": 2}, "FFSF"),
        ({"indexer_types": ["full", "full", "full", "full", "full"]}, "FFFF"),
    ],
)
def test_which_layers_share(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    config = load(tmp_path, changes)
    assert "".join("F" if kind == "full" else "S" for kind in config.indexer_types) == expected
    assert [config.has_indexer(layer) for layer in range(len(expected))] == [kind == "F" for kind in expected]
    assert config.has_indexer(config.num_hidden_layers)


def test_published_schedule_of_glm_5_2(tmp_path: Path) -> None:
    changes = {"index_topk_freq": 4, "index_skip_topk_offset": 3, "num_hidden_layers": 78}
    config = load(tmp_path, changes)
    full = [layer for layer, kind in enumerate(config.indexer_types) if kind == "full"]
    assert full == [0, 1, 2, *range(6, 78, 4)]


def test_parts_and_their_widths(tmp_path: Path) -> None:
    config = load(tmp_path, {"index_topk_pattern": "FSFS"})
    assert [config.part_width(layer, "latent") for layer in range(5)] == [48] * 5
    assert [config.part_width(layer, "index") for layer in range(5)] == [24, None, 24, None, 24]


@pytest.mark.parametrize(
    ("config_ids", "generation", "expected"),
    [(7, None, (7,)), ([7, 8], None, (7, 8)), ([7], {"eos_token_id": [9, 10]}, (9, 10)), ([7], {}, (7,))],
)
def test_end_tokens(
    tmp_path: Path, config_ids: Any, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    assert load(tmp_path, {"eos_token_id": config_ids}, generation).eos_token_ids == expected


def test_older_rope_fields(tmp_path: Path) -> None:
    config = load(tmp_path, {"rope_parameters": ..., "rope_theta": 5000, "rope_scaling": None})
    assert config.rope_theta == 5000


def test_block_scaled_fp8(tmp_path: Path) -> None:
    assert load(tmp_path, {"quantization_config": FP8_QUANTIZATION}).fp8_block_shape == (16, 16)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "deepseek_v3"}, "model_type"),
        ({"model_type": ...}, "model_type"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"routed_scaling_factor": "2.5"}, "routed_scaling_factor"),
        ({"norm_topk_prob": 1}, "norm_topk_prob"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"indexer_rope_interleave": False}, "indexer_rope_interleave"),
        ({"rope_interleave": False}, "rope_interleave"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"num_key_value_heads": 1}, "num_key_value_heads"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40}}, "rope_parameters.rope_type"),
        ({"rope_parameters": {"rope_theta": 1e4, "factor": 4}}, "rope_parameters.factor"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta"),
        ({"rope_parameters": "default"}, "rope_parameters"),
        ({"rope_parameters": ..., "rope_theta": 1e4, "rope_scaling": {"type": "linear"}}, "rope_scaling.rope_type"),
        ({"rope_parameters": ...}, "rope_theta"),
        ({"indexer_types": ["full", "none", "full", "full"]}, "indexer_types"),
        ({"indexer_types": ["full"]}, "indexer_types"),
        ({"indexer_types": ["shared", "full", "full", "full"]}, "indexer_types"),
        ({"indexer_types": 3}, "indexer_types"),
        ({"index_topk_pattern": "FX"}, "index_topk_pattern"),
        ({"index_topk_freq": 0}, "index_topk_freq"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "moe"]}, "mlp_layer_types"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"eos_token_id": ["a"]}, "eos_token_id"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method"),
        ({"quantization_config": FP8_QUANTIZATION | {"fmt": "e5m2"}}, "quantization_config.fmt"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config.weight_block_size"),
        (
            {"quantization_config": FP8_QUANTIZATION | {"weight_block_size": [128]}},
            "quantization_config.weight_block_size",
        ),
        ({"qk_rope_head_dim": 15}, "qk_rope_head_dim"),
        ({"kv_lora_rank": 33}, "kv_lora_rank"),
        ({"index_head_dim": 8}, "index_head_dim"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers"),
        ({"n_group": 3}, "n_group"),
        ({"n_group": 8, "topk_group": 4}, "n_group"),
        ({"topk_group": 2}, "topk_group"),
        ({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3}, "num_experts_per_tok"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_field(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, changes)
    assert caught.value.field == field


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_config(tmp_path)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_config(tmp_path)
