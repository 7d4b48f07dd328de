"""Puts an engine together from a configuration and a checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lineclear.base.errors import ConfigError
from lineclear.config.components import MAX_AUTO_TOTAL_TOKENS, CacheConfig, EngineConfig
from lineclear.engine.block_bytes import BlockBytes
from lineclear.engine.build_tiers import PRODUCT, BuiltCopies, BuiltTiers, TierMaking, build_copies, build_tiers
from lineclear.engine.engine import Engine, PlanRunner
from lineclear.engine.free_memory import free_memory_bytes
from lineclear.engine.passes import LocalPassMaking, PassMaking
from lineclear.engine.runner import Runner
from lineclear.engine.sanitized_copies import SanitizedCopies
from lineclear.engine.sanitizer import KvSanitizer
from lineclear.engine.store import KvStore, kv_layout
from lineclear.guard.guard import Guard
from lineclear.kv.pool import BlockPool
from lineclear.kv.radix import RadixTree
from lineclear.model.checkpoint import OnTensor
from lineclear.model.config import GlmConfig, load_config
from lineclear.model.cost import double_cost_len
from lineclear.model.glm import load_model
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.planner import Prefillers
from lineclear.schedule.scheduler import Scheduler

POOL_SHARE_OF_FREE_MEMORY = 0.5
"""Of what is free at start; the rest is for weights, the forward pass and everybody else on the machine."""

ALONE = LocalPassMaking()

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Handoffs:
    """What an engine needs to take part in handoffs.

    `open_memory` gives zeroed bytes that other processes can reach; `prefillers` is there on decode workers.
    """

    open_memory: Callable[[int], memoryview]
    prefillers: Prefillers | None
    min_tokens: int


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What computes, on every rank of an instance alike; whoever plans is built around it."""

    model_config: GlmConfig
    store: KvStore
    runner: PlanRunner
    max_model_len: int
    max_step_blocks: int | None


def build_engine(  # noqa: PLR0913 - each is a part that most callers leave out
    config: EngineConfig,
    model_dir: Path,
    *,
    on_tensor: OnTensor | None = None,
    handoffs: Handoffs | None = None,
    memory_share: float = 1.0,
    cache: CacheConfig | None = None,
    tier_making: TierMaking = PRODUCT,
    pass_making: PassMaking = ALONE,
    guard: Guard | None = None,
) -> Engine:
    """Load a checkpoint and build the engine around it; `on_tensor` hears of every tensor that is read.

    Without a `guard` no sequence is judged, and without a `cache` there is no tier below the device; `tier_making` is
    for tests and the lab. `pass_making` says who else computes.

    Where nobody says how large the KV cache is, it takes `memory_share` of what an engine alone would take.

    Raises: CheckpointError for what cannot be loaded; ConfigError for settings that model or machine cannot meet.
    """
    open_memory = handoffs.open_memory if handoffs else None
    parts = build_parts(
        config,
        model_dir,
        on_tensor=on_tensor,
        open_memory=open_memory,
        memory_share=memory_share,
        pass_making=pass_making,
    )
    copies: BuiltCopies | None = None
    if cache is not None and cache.host_cache_gib:
        copies = build_copies(cache, config, model_dir, parts.store, tier_making, pass_making.agree)
    return engine_of(parts, config, handoffs=handoffs, cache=cache, copies=copies, tier_making=tier_making, guard=guard)


def engine_of(
    parts: EngineParts,
    config: EngineConfig,
    *,
    handoffs: Handoffs | None = None,
    cache: CacheConfig | None = None,
    copies: BuiltCopies | None = None,
    tier_making: TierMaking = PRODUCT,
    guard: Guard | None = None,
) -> Engine:
    """Build what plans around what computes; with `copies` there are tiers as `cache` says."""
    sanitizer: KvSanitizer | None = None
    if config.kv_sanitizer != "off":
        host = None if copies is None else BlockBytes(copies.host.flat, copies.host.layout)
        sanitizer = KvSanitizer(parts.store.block_bytes(), host, is_full=config.kv_sanitizer == "full")
        if copies is not None:
            copies = replace(copies, copies=SanitizedCopies(copies.copies, sanitizer))
    pool = BlockPool(parts.store.num_blocks, sanitizer)
    schedule = ScheduleConfig(
        max_batch_tokens=config.max_batch_tokens,
        max_running=config.max_running,
        # Whoever submits refuses what is too much, counting all that it has submitted. Which of those already run is
        # decided here, by blocks: with long prompts fewer than max_running, and then more of them wait.
        max_waiting=config.max_running + config.max_waiting,
        max_model_len=parts.max_model_len,
        draft_tokens=config.draft_tokens,
        double_cost_len=double_cost_len(parts.model_config),
        min_handoff_tokens=handoffs.min_tokens if handoffs else 1,
        eos_token_ids=frozenset(parts.model_config.eos_token_ids),
        max_step_blocks=parts.max_step_blocks,
    )
    tree = RadixTree(pool, config.block_size, keeps=config.prefix_cache)
    tiers: BuiltTiers | None = None
    if cache is not None and copies is not None:
        tiers = build_tiers(cache, config, copies, pool, tree, tier_making)
    prefillers = handoffs.prefillers if handoffs else None
    scheduler = Scheduler(schedule, pool, tree, prefillers, tiers and tiers.plans, guard)
    return Engine(scheduler, parts.runner, parts.store, pool, tiers and tiers.drive, sanitizer)


def build_parts(
    config: EngineConfig,
    model_dir: Path,
    *,
    on_tensor: OnTensor | None = None,
    open_memory: Callable[[int], memoryview] | None = None,
    memory_share: float = 1.0,
    pass_making: PassMaking = ALONE,
) -> EngineParts:
    """Load a checkpoint, and build what computes and stores; ranks of an instance build this together.

    Raises: as `build_engine`.
    """
    torch.set_num_threads(config.num_threads)
    device = _device(config)
    dtype = DTYPES[config.dtype]
    model_config = load_config(model_dir)
    if config.draft_tokens and not model_config.has_mtp:
        raise ConfigError("draft_tokens", config.draft_tokens, "0, as the checkpoint has no draft layer")
    layers = pass_making.stored_layers(model_config)
    model = load_model(
        model_dir, device=device, dtype=dtype, batch_invariant=config.batch_invariant, on_tensor=on_tensor
    )
    free_bytes = max(0, free_memory_bytes(device) - pass_making.reserved_bytes)
    block_bytes = kv_layout(model_config, 1, config.block_size, dtype, layers).block_bytes
    num_blocks = _num_blocks(config, block_bytes, free_bytes, POOL_SHARE_OF_FREE_MEMORY * memory_share)
    num_blocks = pass_making.agree(num_blocks)
    max_model_len = _max_model_len(config, model_config, num_blocks)
    memory = None
    if open_memory is not None:
        memory = open_memory(kv_layout(model_config, num_blocks, config.block_size, dtype, layers).num_bytes)
    store = KvStore(
        model_config, num_blocks, config.block_size, device=device, dtype=dtype, memory=memory, layers=layers
    )
    runner = Runner(
        model,
        pass_making.make(model, store, max_model_len),
        draft_tokens=config.draft_tokens,
        seed=config.seed,
        stop_token_ids=model_config.eos_token_ids,
        device=device,
    )
    return EngineParts(model_config, store, runner, max_model_len, pass_making.max_step_blocks(model_config))


def kv_bytes_per_token(config: GlmConfig, dtype: torch.dtype) -> int:
    """KV of one token over all layers and parts."""
    widths = [
        config.part_width(layer, part) or 0 for layer in range(config.num_cache_layers) for part in ("latent", "index")
    ]
    return sum(widths) * dtype.itemsize


def _device(config: EngineConfig) -> torch.device:
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", config.device, "cpu, as torch finds no CUDA device here")
    return device


def _num_blocks(config: EngineConfig, block_bytes: int, free_bytes: int, free_share: float) -> int:
    free_tokens = free_bytes * config.block_size // block_bytes
    if config.max_total_tokens is not None:
        if config.max_total_tokens > free_tokens:
            allowed = f"at most {free_tokens}, for which there is free memory on {config.device}"
            raise ConfigError("max_total_tokens", config.max_total_tokens, allowed)
        return config.max_total_tokens // config.block_size
    num_tokens = min(int(free_tokens * free_share), MAX_AUTO_TOTAL_TOKENS)
    if num_tokens < config.block_size:
        raise ConfigError(
            "max_total_tokens", "auto", f"memory for a block of {config.block_size} tokens; there is none"
        )
    return num_tokens // config.block_size


def _max_model_len(config: EngineConfig, model_config: GlmConfig, num_blocks: int) -> int:
    pool_tokens = num_blocks * config.block_size
    most = min(model_config.max_position_embeddings, pool_tokens)
    if config.max_model_len is None:
        return most
    if config.max_model_len > most:
        allowed = (
            f"at most {most} (the model's positions: {model_config.max_position_embeddings}, "
            f"the KV cache's tokens: {pool_tokens})"
        )
        raise ConfigError("max_model_len", config.max_model_len, allowed)
    return config.max_model_len
