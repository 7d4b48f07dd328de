"""What a worker tells the gateway about its model, and about its work so far."""

from pathlib import Path

from lineclear.config.components import ServeConfig
from lineclear.engine.engine import EngineStatistics
from lineclear.kv.pool import PoolStatistics
from lineclear.model.config import load_config
from lineclear.model.digest import model_digest
from lineclear.parallel.meter import CommunicationStatistics
from lineclear.protocol import wire


def model_facts(config: ServeConfig, *, num_blocks: int) -> wire.ModelFacts:
    """The facts of the model that an engine was built around with this configuration."""
    model_dir = Path(config.source.model)
    model = load_config(model_dir)
    most_tokens = min(model.max_position_embeddings, num_blocks * config.engine.block_size)
    return wire.ModelFacts(
        name=config.gateway.served_model_name or model_dir.name,
        vocab_size=model.vocab_size,
        max_model_len=config.engine.max_model_len or most_tokens,
        eos_token_ids=sorted(model.eos_token_ids),
        block_size=config.engine.block_size,
        num_blocks=num_blocks,
        draft_tokens=config.engine.draft_tokens,
        max_running=config.engine.max_running,
        decisive={
            "model": model_digest(model_dir),
            "device": config.engine.device.partition(":")[0],
            "dtype": config.engine.dtype,
            "batch-invariant": str(config.engine.batch_invariant),
        },
    )


def worker_statistics(
    engine: EngineStatistics,
    handoffs: wire.HandoffStatistics | None = None,
    ranks: wire.RankStatistics | None = None,
) -> wire.WorkerStatistics:
    """The engine's figures as they are sent."""
    scheduler, pool = engine.scheduler, engine.pool
    return wire.WorkerStatistics(
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_receiving=scheduler.num_receiving,
        num_preemptions=scheduler.num_preemptions,
        num_damaged=scheduler.num_damaged,
        blocks_free=pool.free,
        blocks_held=pool.held,
        blocks_quarantined=pool.quarantined,
        blocks_total=pool.total,
        cached_prompt_tokens=scheduler.cached_prompt_tokens,
        prompt_tokens=scheduler.prompt_tokens,
        output_tokens=scheduler.output_tokens,
        draft=scheduler.draft_counts,
        steps=engine.num_steps,
        step_seconds_total=engine.step_seconds_total,
        handoffs=handoffs,
        tiers=_tier_statistics(engine),
        ranks=ranks,
        sanitizer=_sanitizer_statistics(engine),
        guard=scheduler.guard,
    )


def rank_statistics(communication: CommunicationStatistics, num_ranks: int) -> wire.RankStatistics:
    """A rank's figures as they are sent."""
    sent_bytes: dict[str, int] = {}
    for (_, part), num_bytes in communication.sent_bytes.items():
        sent_bytes[part] = sent_bytes.get(part, 0) + num_bytes
    return wire.RankStatistics(
        num_ranks=num_ranks,
        num_broadcasts=communication.num_broadcasts,
        sent_bytes=sent_bytes,
        gathered_bytes=communication.gathered_bytes,
        transfer_seconds=dict(communication.transfer_seconds),
        wait_seconds=dict(communication.wait_seconds),
        load_wait_seconds=communication.load_wait_seconds,
    )


def _sanitizer_statistics(engine: EngineStatistics) -> wire.SanitizerStatistics | None:
    found = engine.sanitizer
    if found is None:
        return None
    return wire.SanitizerStatistics(
        num_seals=found.num_seals,
        num_checks=found.num_checks,
        num_poisoned=found.num_poisoned,
        num_faults={kind.value: count for kind, count in found.num_faults.items()},
    )


def _tier_statistics(engine: EngineStatistics) -> wire.TierStatistics | None:
    tiers, copies = engine.scheduler.tiers, engine.copies
    if tiers is None or copies is None:
        return None
    block_bytes = copies.block_bytes
    blocks = {"device": _tier_blocks(engine.pool, block_bytes), "host": _tier_blocks(tiers.host, block_bytes)}
    if tiers.disk is not None:
        blocks["disk"] = _tier_blocks(tiers.disk, copies.file_bytes)
    lower_hits = tiers.host_hit_tokens + tiers.disk_hit_tokens
    return wire.TierStatistics(
        blocks=blocks,
        hit_tokens={
            "device": engine.scheduler.cached_prompt_tokens - lower_hits,
            "host": tiers.host_hit_tokens,
            "disk": tiers.disk_hit_tokens,
        },
        moved_bytes={
            "load": copies.load_bytes,
            "offload": copies.offload_bytes,
            "disk_read": tiers.num_read_blocks * block_bytes,
            "disk_write": tiers.num_written_blocks * block_bytes,
        },
        moving_seconds={
            "load": copies.load_seconds,
            "offload": copies.offload_seconds,
            "disk_read": copies.disk_read_seconds,
            "disk_write": copies.disk_write_seconds,
        },
        num_waits=copies.num_waits,
        wait_seconds=copies.wait_seconds,
        num_prefetches=tiers.num_prefetches,
        dropped_blocks=tiers.num_dropped_blocks,
        failures={kind.value: count for kind, count in tiers.failures.items()},
    )


def _tier_blocks(pool: PoolStatistics, block_bytes: int) -> wire.TierBlocks:
    return wire.TierBlocks(
        free=pool.free, held=pool.held, quarantined=pool.quarantined, total=pool.total, block_bytes=block_bytes
    )
