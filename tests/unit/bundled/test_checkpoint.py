import json

import pytest
from safetensors import safe_open

from lineclear.bundled import checkpoint_path

CONFIG = json.loads((checkpoint_path() / "config.json").read_text())


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="lineclear-tiny"):
        checkpoint_path("nonsense")


def test_the_checkpoint_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in checkpoint_path().iterdir()}
    assert sum(files.values()) <= 32 * 1024 * 1024
    assert files.keys() >= {
        "README.md", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


def test_selection_is_sparse_shared_once_and_safe_from_ties() -> None:
    assert CONFIG["model_type"] == "glm_moe_dsa"
    assert CONFIG["index_topk"] <= 256
    assert CONFIG["index_n_heads"] >= 16
    assert "shared" in CONFIG["indexer_types"]
    assert CONFIG["max_position_embeddings"] >= 131072


def test_the_tensors_are_those_of_the_architecture() -> None:
    with safe_open(checkpoint_path() / "model.safetensors", "np") as tensors:
        names = set(tensors.keys())
        draft = CONFIG["num_hidden_layers"]
        for idx, kind in enumerate(CONFIG["indexer_types"]):
            assert (f"model.layers.{idx}.self_attn.indexer.wk.weight" in names) == (kind == "full")
        for name in ("eh_proj", "enorm", "hnorm", "shared_head.norm", "self_attn.indexer.wq_b"):
            assert f"model.layers.{draft}.{name}.weight" in names
        assert tensors.get_slice("lm_head.weight").get_shape() == [CONFIG["vocab_size"], CONFIG["hidden_size"]]


def test_transformers_reads_the_configuration() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(checkpoint_path())
    assert type(config).__name__ == "GlmMoeDsaConfig"
    assert config.indexer_types == CONFIG["indexer_types"]
    assert config.rope_parameters["rope_theta"] == CONFIG["rope_parameters"]["rope_theta"]
