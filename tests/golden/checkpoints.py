"""Tiny random checkpoints in the published on-disk layout: experts apart, the draft layer last, several shards.

The names and shapes are written out here independently of the loader.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

BASE_CONFIG: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "index_n_heads": 16,
    "index_head_dim": 24,
    "index_topk": 32,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "max_position_embeddings": 65536,
    "num_nextn_predict_layers": 1,
    "eos_token_id": [1, 2],
    "initializer_range": 0.02,
}

GLM_5: dict[str, Any] = {}
GLM_5_2_TYPES = {"indexer_types": ["full", "shared", "full", "shared"], "index_share_for_mtp_iteration": True}
GLM_5_2_FREQ = {"index_topk_freq": 2, "index_skip_topk_offset": 1, "index_share_for_mtp_iteration": True}
GLM_5_2_PATTERN = {"index_topk_pattern": "FFSS"}
GROUPED = {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "norm_topk_prob": False}
VARIANTS = {
    "glm5": GLM_5,
    "glm52-types": GLM_5_2_TYPES,
    "glm52-freq": GLM_5_2_FREQ,
    "glm52-pattern": GLM_5_2_PATTERN,
    "groups": GROUPED,
}
FP8_QUANTIZATION = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [16, 16],
    "activation_scheme": "dynamic",
}


@dataclass
class TinyCheckpoint:
    """A configuration and its tensors; `write` puts them on disk."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def write(self, directory: Path, num_shards: int = 3) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(self.config))
        names = sorted(self.tensors)
        weight_map: dict[str, str] = {}
        for shard in range(num_shards):
            file_name = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
            part = {name: self.tensors[name].contiguous() for name in names[shard::num_shards]}
            save_file(part, str(directory / file_name), metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, file_name)
        index = {"metadata": {}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        return directory


def tiny_checkpoint(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> TinyCheckpoint:
    """Random weights at a scale at which attention, routing and selection all matter."""
    config = BASE_CONFIG | {"dtype": str(dtype).removeprefix("torch.")} | changes
    tensors = _Random(config, torch.Generator().manual_seed(seed), dtype).model()
    return TinyCheckpoint(config, tensors)


def quantize(checkpoint: TinyCheckpoint) -> tuple[TinyCheckpoint, TinyCheckpoint]:
    """The checkpoint with block-scaled fp8 projections, and its plain twin with exactly the values these stand for."""
    quantized, plain = TinyCheckpoint(checkpoint.config | {"quantization_config": FP8_QUANTIZATION}), {}
    for name, tensor in checkpoint.tensors.items():
        is_kept = tensor.dim() < 2 or any(part in name for part in ("embed", "lm_head", "mlp.gate.", "weights_proj"))
        if is_kept:
            quantized.tensors[name] = plain[name] = tensor
            continue
        rows, columns = tensor.shape
        scales = torch.zeros(-(-rows // 16), -(-columns // 16))
        values = torch.zeros_like(tensor, dtype=torch.float8_e4m3fn)
        plain[name] = torch.zeros_like(tensor)
        for row in range(scales.shape[0]):
            for column in range(scales.shape[1]):
                block = (slice(row * 16, row * 16 + 16), slice(column * 16, column * 16 + 16))
                scales[row, column] = tensor[block].abs().max() / 448
                values[block] = (tensor[block] / scales[row, column]).to(torch.float8_e4m3fn)
                plain[name][block] = values[block].float() * scales[row, column]
        quantized.tensors[name] = values
        quantized.tensors[f"{name}_scale_inv"] = scales
    return quantized, TinyCheckpoint(checkpoint.config, plain)


class _Random:
    def __init__(self, config: dict[str, Any], generator: torch.Generator, dtype: torch.dtype) -> None:
        self._config = config
        self._generator = generator
        self._dtype = dtype
        self._tensors: dict[str, Tensor] = {}

    def model(self) -> dict[str, Tensor]:
        config = self._config
        hidden, num_layers = config["hidden_size"], config["num_hidden_layers"]
        self._matrix("model.embed_tokens.weight", config["vocab_size"], hidden, scale=1.0)
        self._matrix("lm_head.weight", config["vocab_size"], hidden, scale=2.0)
        self._norm("model.norm.weight", hidden)
        for layer in range(num_layers):
            self._layer(f"model.layers.{layer}", has_indexer=_has_indexer(config, layer), is_dense=layer == 0)
        if config["num_nextn_predict_layers"]:
            prefix = f"model.layers.{num_layers}"
            self._layer(prefix, has_indexer=True, is_dense=False)
            for name in ("enorm", "hnorm", "shared_head.norm"):
                self._norm(f"{prefix}.{name}.weight", hidden)
            self._matrix(f"{prefix}.eh_proj.weight", hidden, 2 * hidden)
        return self._tensors

    def _layer(self, prefix: str, *, has_indexer: bool, is_dense: bool) -> None:
        config = self._config
        self._norm(f"{prefix}.input_layernorm.weight", config["hidden_size"])
        self._norm(f"{prefix}.post_attention_layernorm.weight", config["hidden_size"])
        self._attention(f"{prefix}.self_attn", has_indexer=has_indexer)
        if is_dense:
            self._mlp(f"{prefix}.mlp", config["intermediate_size"])
            return
        for expert in range(config["n_routed_experts"]):
            self._mlp(f"{prefix}.mlp.experts.{expert}", config["moe_intermediate_size"])
        self._mlp(f"{prefix}.mlp.shared_experts", config["moe_intermediate_size"] * config["n_shared_experts"])
        self._matrix(
            f"{prefix}.mlp.gate.weight", config["n_routed_experts"], config["hidden_size"], dtype=torch.float32
        )
        bias = torch.randn(config["n_routed_experts"], generator=self._generator) * 0.1
        self._tensors[f"{prefix}.mlp.gate.e_score_correction_bias"] = bias

    def _attention(self, prefix: str, *, has_indexer: bool) -> None:
        config = self._config
        hidden, heads, q_rank = config["hidden_size"], config["num_attention_heads"], config["q_lora_rank"]
        latent, rope, nope = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"]
        self._matrix(f"{prefix}.q_a_proj.weight", q_rank, hidden)
        self._norm(f"{prefix}.q_a_layernorm.weight", q_rank)
        self._matrix(f"{prefix}.q_b_proj.weight", heads * (nope + rope), q_rank, scale=2.0)
        self._matrix(f"{prefix}.kv_a_proj_with_mqa.weight", latent + rope, hidden)
        self._norm(f"{prefix}.kv_a_layernorm.weight", latent)
        self._matrix(f"{prefix}.kv_b_proj.weight", heads * (nope + config["v_head_dim"]), latent)
        self._matrix(f"{prefix}.o_proj.weight", hidden, heads * config["v_head_dim"])
        if has_indexer:
            self._matrix(f"{prefix}.indexer.wq_b.weight", config["index_n_heads"] * config["index_head_dim"], q_rank)
            self._matrix(f"{prefix}.indexer.wk.weight", config["index_head_dim"], hidden)
            self._norm(f"{prefix}.indexer.k_norm.weight", config["index_head_dim"])
            bias = torch.randn(config["index_head_dim"], generator=self._generator) * 0.1
            self._tensors[f"{prefix}.indexer.k_norm.bias"] = bias.to(self._dtype)
            self._matrix(f"{prefix}.indexer.weights_proj.weight", config["index_n_heads"], hidden)

    def _mlp(self, prefix: str, width: int) -> None:
        hidden = self._config["hidden_size"]
        self._matrix(f"{prefix}.gate_proj.weight", width, hidden)
        self._matrix(f"{prefix}.up_proj.weight", width, hidden)
        self._matrix(f"{prefix}.down_proj.weight", hidden, width)

    def _matrix(self, name: str, rows: int, columns: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> None:
        values = torch.randn(rows, columns, generator=self._generator) * scale * columns**-0.5
        self._tensors[name] = values.to(dtype or self._dtype)

    def _norm(self, name: str, width: int) -> None:
        self._tensors[name] = (1 + 0.1 * torch.randn(width, generator=self._generator)).to(self._dtype)


def _has_indexer(config: dict[str, Any], layer: int) -> bool:
    if "indexer_types" in config:
        return config["indexer_types"][layer] == "full"
    if "index_topk_pattern" in config:
        return config["index_topk_pattern"][layer] == "F"
    freq, offset = config.get("index_topk_freq", 1), config.get("index_skip_topk_offset", 2)
    return max(layer - offset + 1, 0) % freq == 0
