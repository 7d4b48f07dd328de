"""The configuration of a GLM-MoE-DSA checkpoint (`model_type: glm_moe_dsa`), from its `config.json`.

Both generations load: with an indexer in every layer (GLM-5, 5.1) and with layers that share the last indexer's
selection (GLM-5.2: `indexer_types`, or `index_topk_pattern`, or `index_topk_freq` with `index_skip_topk_offset`).
Whatever the model code cannot compute is refused here, by field.

Source: `transformers` 5.24.0, `configuration_glm_moe_dsa.py`; the draft layer's fields as SGLang and vLLM read them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from lineclear.base.errors import CheckpointError
from lineclear.model.batch import Part

IndexerType = Literal["full", "shared"]
MlpType = Literal["dense", "sparse"]

LATENT_NORM_EPS = 1e-6
"""Of the norms on the query and key-value latents and the index key: fixed in the published code, not configured."""

MODEL_TYPE = "glm_moe_dsa"

_FIXED_FIELDS: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "ep_size": (1,),
    "hidden_act": ("silu",),
    "indexer_rope_interleave": (True,),
    "mlp_bias": (False,),
    "moe_layer_freq": (1,),
    "pretraining_tp": (1,),
    "rope_interleave": (True,),
    "scoring_func": ("sigmoid",),
    "tie_word_embeddings": (False,),
    "topk_method": ("noaux_tc",),
}
"""Fields of which the model computes one setting; absent means that setting."""


@dataclass(frozen=True, kw_only=True)
class GlmConfig:
    """Everything that the forward and draft passes need to know about a checkpoint."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    indexer_types: tuple[IndexerType, ...]
    mlp_layer_types: tuple[MlpType, ...]
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    num_nextn_predict_layers: int
    index_share_for_mtp_iteration: bool
    eos_token_ids: tuple[int, ...]
    fp8_block_shape: tuple[int, int] | None

    @property
    def qk_head_dim(self) -> int:
        """Width of one head's query, which scales the attention scores."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_width(self) -> int:
        """Values a token caches for attention: the latent and the rope key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def has_mtp(self) -> bool:
        """Whether the checkpoint has a draft layer."""
        return self.num_nextn_predict_layers > 0

    @property
    def num_cache_layers(self) -> int:
        """Layers with KV: the model's own and, last, the draft layer's."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    def has_indexer(self, layer: int) -> bool:
        """Whether the layer selects for itself; the draft layer always does."""
        return layer >= self.num_hidden_layers or self.indexer_types[layer] == "full"

    def part_width(self, layer: int, part: Part) -> int | None:
        """Values a token caches in this layer and part; None where the layer has no such part."""
        if part == "latent":
            return self.latent_width
        return self.index_head_dim if self.has_indexer(layer) else None


def load_config(directory: Path) -> GlmConfig:
    """Read `config.json` (and the end tokens of `generation_config.json`, where present).

    Raises: CheckpointError naming the field that is missing, malformed or cannot be computed.
    """
    fields = _Fields(_read_json(directory / "config.json"))
    generation_path = directory / "generation_config.json"
    generation = _Fields(_read_json(generation_path)) if generation_path.exists() else None
    _refuse_unsupported(fields)
    num_layers = fields.positive("num_hidden_layers")
    config = GlmConfig(
        vocab_size=fields.positive("vocab_size"),
        hidden_size=fields.positive("hidden_size"),
        intermediate_size=fields.positive("intermediate_size"),
        moe_intermediate_size=fields.positive("moe_intermediate_size"),
        num_hidden_layers=num_layers,
        num_attention_heads=fields.positive("num_attention_heads"),
        q_lora_rank=fields.positive("q_lora_rank"),
        kv_lora_rank=fields.positive("kv_lora_rank"),
        qk_nope_head_dim=fields.positive("qk_nope_head_dim"),
        qk_rope_head_dim=fields.positive("qk_rope_head_dim"),
        v_head_dim=fields.positive("v_head_dim"),
        index_n_heads=fields.positive("index_n_heads"),
        index_head_dim=fields.positive("index_head_dim"),
        index_topk=fields.positive("index_topk"),
        indexer_types=_indexer_types(fields, num_layers),
        mlp_layer_types=_mlp_layer_types(fields, num_layers),
        n_routed_experts=fields.positive("n_routed_experts"),
        n_shared_experts=fields.positive("n_shared_experts"),
        num_experts_per_tok=fields.positive("num_experts_per_tok"),
        n_group=fields.positive("n_group", 1),
        topk_group=fields.positive("topk_group", 1),
        norm_topk_prob=fields.boolean("norm_topk_prob", default=True),
        routed_scaling_factor=fields.number("routed_scaling_factor"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=_rope_theta(fields),
        max_position_embeddings=fields.positive("max_position_embeddings"),
        num_nextn_predict_layers=fields.integer("num_nextn_predict_layers", 0),
        index_share_for_mtp_iteration=fields.boolean("index_share_for_mtp_iteration", default=False),
        eos_token_ids=_eos_token_ids(fields, generation),
        fp8_block_shape=_fp8_block_shape(fields),
    )
    _check_shapes(config)
    return config


class _Fields:
    """The object in a JSON file, read with types checked."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> object:
        """The field's value; None where it is absent or null."""
        return self._values.get(name)

    def items(self, name: str) -> list[object] | None:
        """A list, or a text as the list of its letters; None where it is absent or null."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, list | str):
            _refuse(name, value, "a list")
        return None if value is None else list(cast("list[object]", value))

    def fields(self, name: str) -> "_Fields | None":
        """An object; None where it is absent or null."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            _refuse(name, value, "an object")
        return None if value is None else _Fields(cast("dict[str, Any]", value))

    def names(self) -> list[str]:
        """Names of all fields, sorted."""
        return sorted(self._values)

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number from 0 upwards."""
        value = self._present(name, default, "a whole number")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            _refuse(name, value, "a whole number from 0 upwards")
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number from 1 upwards."""
        value = self.integer(name, default)
        if value == 0:
            _refuse(name, value, "a whole number from 1 upwards")
        return value

    def number(self, name: str) -> float:
        """A number above 0."""
        value = self._present(name, None, "a number")
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            _refuse(name, value, "a number above 0")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._present(name, default, "true or false")
        if not isinstance(value, bool):
            _refuse(name, value, "true or false")
        return value

    def _present(self, name: str, default: object, allowed: str) -> object:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            _refuse(name, None, allowed)
        return value


def _refuse(name: str, value: object, allowed: str) -> NoReturn:
    raise CheckpointError(name, value, allowed)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(path.name, str(error), "a readable JSON file") from error
    if not isinstance(content, dict):
        _refuse(path.name, type(content).__name__, "a JSON object")
    return cast("dict[str, Any]", content)


def _refuse_unsupported(fields: _Fields) -> None:
    if fields.get("model_type") != MODEL_TYPE:
        _refuse("model_type", fields.get("model_type"), MODEL_TYPE)
    for name, allowed in _FIXED_FIELDS.items():
        value = fields.get(name)
        if value is not None and value not in allowed:
            _refuse(name, value, " or ".join(json.dumps(choice) for choice in allowed))
    heads, kv_heads = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    if kv_heads is not None and kv_heads != heads:
        _refuse("num_key_value_heads", kv_heads, f"num_attention_heads ({heads})")
    for layer_type in fields.items("layer_types") or ():
        if layer_type != "indexed_attention":
            _refuse("layer_types", layer_type, "indexed_attention for every layer")


def _rope_theta(fields: _Fields) -> float:
    parameters = fields.fields("rope_parameters")
    if parameters is not None:
        _refuse_scaling("rope_parameters", parameters)
        return parameters.number("rope_theta")
    scaling = fields.fields("rope_scaling")
    if scaling is not None:
        _refuse_scaling("rope_scaling", scaling)
    return fields.number("rope_theta")


def _refuse_scaling(name: str, parameters: _Fields) -> None:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind != "default":
        _refuse(f"{name}.rope_type", kind, "default (no scaling)")
    for extra in parameters.names():
        if extra not in {"rope_type", "type", "rope_theta"}:
            _refuse(f"{name}.{extra}", parameters.get(extra), "absent (no scaling)")


def _indexer_types(fields: _Fields, num_layers: int) -> tuple[IndexerType, ...]:
    types = _declared_indexer_types(fields) or _scheduled_indexer_types(fields, num_layers)
    if len(types) < num_layers:
        _refuse("indexer_types", f"{len(types)} entries", f"one for each of {num_layers} layers")
    if types[0] != "full":
        _refuse("indexer_types", "shared in layer 0", "full in layer 0: there is nothing to share yet")
    return types[:num_layers]


def _declared_indexer_types(fields: _Fields) -> tuple[IndexerType, ...] | None:
    for name in ("indexer_types", "index_topk_pattern"):
        declared = fields.items(name)
        if declared is not None:
            return tuple(_indexer_type(name, entry) for entry in declared)
    return None


def _indexer_type(name: str, entry: object) -> IndexerType:
    if entry in {"full", "F"}:
        return "full"
    if entry in {"shared", "S"}:
        return "shared"
    _refuse(name, entry, "full or shared (F or S)")


def _scheduled_indexer_types(fields: _Fields, num_layers: int) -> tuple[IndexerType, ...]:
    freq = fields.positive("index_topk_freq", 1)
    offset = fields.integer("index_skip_topk_offset", 2)
    return tuple("full" if max(layer - offset + 1, 0) % freq == 0 else "shared" for layer in range(num_layers))


def _mlp_layer_types(fields: _Fields, num_layers: int) -> tuple[MlpType, ...]:
    declared = fields.items("mlp_layer_types")
    if declared is None:
        num_dense = min(fields.integer("first_k_dense_replace"), num_layers)
        return ("dense",) * num_dense + ("sparse",) * (num_layers - num_dense)
    if len(declared) != num_layers or not set(declared) <= {"dense", "sparse"}:
        _refuse("mlp_layer_types", declared, f"dense or sparse for each of {num_layers} layers")
    return tuple(cast("list[MlpType]", declared))


def _eos_token_ids(fields: _Fields, generation: _Fields | None) -> tuple[int, ...]:
    declared = generation.get("eos_token_id") if generation is not None else None
    if declared is None:
        declared = fields.get("eos_token_id")
    ids = cast("list[object]", declared) if isinstance(declared, list) else [declared]
    if not all(isinstance(token_id, int) for token_id in ids):
        _refuse("eos_token_id", declared, "a token id or a list of them")
    return tuple(cast("list[int]", ids))


def _fp8_block_shape(fields: _Fields) -> tuple[int, int] | None:
    quantization = fields.fields("quantization_config")
    if quantization is None:
        return None
    method = quantization.get("quant_method")
    if method != "fp8":
        _refuse("quantization_config.quant_method", method, "fp8")
    number_format = quantization.get("fmt") or "e4m3"
    if number_format not in {"e4m3", "float8_e4m3fn"}:
        _refuse("quantization_config.fmt", number_format, "e4m3")
    shape = quantization.items("weight_block_size")
    if shape is None or len(shape) != 2 or not all(isinstance(size, int) and size > 0 for size in shape):
        _refuse("quantization_config.weight_block_size", shape, "two whole numbers above 0 (block-scaled weights)")
    rows, columns = cast("list[int]", shape)
    return rows, columns


def _check_shapes(config: GlmConfig) -> None:
    if config.qk_rope_head_dim % 2:
        _refuse("qk_rope_head_dim", config.qk_rope_head_dim, "an even number")
    for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "index_head_dim"):
        if getattr(config, name) % 2:
            _refuse(name, getattr(config, name), "an even number: rotary pairs are read in place behind it")
    if config.index_head_dim < config.qk_rope_head_dim:
        _refuse("index_head_dim", config.index_head_dim, f"at least qk_rope_head_dim ({config.qk_rope_head_dim})")
    if config.num_nextn_predict_layers > 1:
        _refuse("num_nextn_predict_layers", config.num_nextn_predict_layers, "0 or 1")
    if config.n_routed_experts % config.n_group:
        _refuse("n_group", config.n_group, f"a divisor of n_routed_experts ({config.n_routed_experts})")
    if config.topk_group > config.n_group:
        _refuse("topk_group", config.topk_group, f"at most n_group ({config.n_group})")
    group_size = config.n_routed_experts // config.n_group
    if config.n_group > 1 and group_size < 2:
        _refuse("n_group", config.n_group, "groups of at least two experts")
    if config.num_experts_per_tok > config.topk_group * group_size:
        _refuse("num_experts_per_tok", config.num_experts_per_tok, f"at most {config.topk_group * group_size}")
