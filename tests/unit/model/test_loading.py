"""Tensors that are missing, misshapen, unknown, doubled or of another type are named; everything else loads."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lineclear.base.errors import CheckpointError
from lineclear.model.checkpoint import Checkpoint, multiply_out
from lineclear.model.glm import GlmModel, load_model
from tests.golden.checkpoints import GLM_5_2_TYPES, TinyCheckpoint, quantize, tiny_checkpoint

CPU = torch.device("cpu")


def load(checkpoint: TinyCheckpoint, directory: Path) -> GlmModel:
    return load_model(checkpoint.write(directory), device=CPU, dtype=torch.float32)


def refused(checkpoint: TinyCheckpoint, directory: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, directory)
    return caught.value


@pytest.mark.parametrize("num_shards", [1, 5])
def test_shards_load(tmp_path: Path, num_shards: int) -> None:
    checkpoint = tiny_checkpoint()
    directory = checkpoint.write(tmp_path, num_shards)
    loaded = Checkpoint(directory, None)
    for name, tensor in checkpoint.tensors.items():
        assert torch.equal(loaded.take(name, *tensor.shape), tensor)
    loaded.refuse_left()


def test_one_file_without_an_index_loads(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, str(tmp_path / "model.safetensors"))
    loaded = Checkpoint(tmp_path, None)
    assert loaded.has("a")
    assert not loaded.has("b")
    assert loaded.take("a", 2).tolist() == [1, 1]


@pytest.mark.parametrize(
    "name",
    [
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.2.mlp.experts.7.down_proj.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias",
        "model.layers.3.self_attn.indexer.k_norm.bias",
        "model.layers.4.eh_proj.weight",
        "model.layers.4.self_attn.indexer.wk.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    checkpoint = tiny_checkpoint()
    del checkpoint.tensors[name]
    error = refused(checkpoint, tmp_path)
    assert (error.field, error.value) == (name, "missing")


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.kv_b_proj.weight", "model.embed_tokens.weight"])
def test_a_misshapen_tensor_is_named(tmp_path: Path, name: str) -> None:
    checkpoint = tiny_checkpoint()
    checkpoint.tensors[name] = checkpoint.tensors[name][1:]
    error = refused(checkpoint, tmp_path)
    assert error.field == name
    assert str(list(checkpoint.tensors[name].shape)) in str(error.value)


@pytest.mark.parametrize(
    "name", ["model.layers.1.self_attn.q_a_proj.bias", "model.layers.5.input_layernorm.weight", "visual.patch.weight"]
)
def test_an_unknown_tensor_is_named(tmp_path: Path, name: str) -> None:
    checkpoint = tiny_checkpoint()
    checkpoint.tensors[name] = torch.zeros(3)
    assert refused(checkpoint, tmp_path).field == name


def test_an_indexer_in_a_layer_that_shares_is_unknown(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint()
    checkpoint.config |= GLM_5_2_TYPES
    assert refused(checkpoint, tmp_path).field.startswith("model.layers.1.self_attn.indexer.")


def test_a_draft_layer_that_the_configuration_denies_is_unknown(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint()
    checkpoint.config["num_nextn_predict_layers"] = 0
    assert refused(checkpoint, tmp_path).field.startswith("model.layers.4.")


def test_a_tensor_of_another_type_is_named(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint()
    checkpoint.tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int32)
    error = refused(checkpoint, tmp_path)
    assert (error.field, error.value) == ("model.norm.weight", "torch.int32")


def test_copies_of_embedding_and_head_in_the_draft_layer_are_taken(tmp_path: Path) -> None:
    checkpoint = tiny_checkpoint()
    checkpoint.tensors["model.layers.4.embed_tokens.weight"] = checkpoint.tensors["model.embed_tokens.weight"].clone()
    checkpoint.tensors["model.layers.4.shared_head.head.weight"] = checkpoint.tensors["lm_head.weight"].clone()
    load(checkpoint, tmp_path)


@pytest.mark.parametrize("name", ["embed_tokens", "shared_head.head"])
def test_another_embedding_or_head_in_the_draft_layer_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = tiny_checkpoint()
    own = f"model.layers.4.{name}.weight"
    checkpoint.tensors[own] = checkpoint.tensors["lm_head.weight"] + 1
    assert refused(checkpoint, tmp_path).field == own


def test_fp8_without_its_scales_is_refused(tmp_path: Path) -> None:
    quantized, _ = quantize(tiny_checkpoint())
    name = "model.layers.1.self_attn.o_proj.weight_scale_inv"
    del quantized.tensors[name]
    assert refused(quantized, tmp_path).field == name


def test_fp8_without_an_explanation_is_refused(tmp_path: Path) -> None:
    quantized, _ = quantize(tiny_checkpoint())
    del quantized.config["quantization_config"]
    assert refused(quantized, tmp_path).value == "float8_e4m3fn"


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    quantized, _ = quantize(tiny_checkpoint())
    name = "model.layers.1.self_attn.o_proj.weight_scale_inv"
    quantized.tensors[name] = quantized.tensors[name][1:]
    assert refused(quantized, tmp_path).field == name


def test_blocks_are_multiplied_by_their_scale() -> None:
    weight = torch.ones(3, 5).to(torch.float8_e4m3fn)
    scales = torch.tensor([[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]])
    expected = [[2, 2, 3, 3, 4], [2, 2, 3, 3, 4], [5, 5, 6, 6, 7]]
    assert multiply_out(weight, scales, (2, 2)).tolist() == expected


def test_an_index_that_disagrees_with_its_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, str(tmp_path / "one.safetensors"))
    index = {"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(tmp_path, None)
    assert caught.value.field == "b"


def test_an_index_without_a_map_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        Checkpoint(tmp_path, None)


@pytest.mark.parametrize("content", [None, b"junk"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint(tmp_path, None)
