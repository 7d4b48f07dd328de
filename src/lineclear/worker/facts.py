"""What a worker tells the gateway about its model, and about its work so far."""

from pathlib import Path

from lineclear.config.components import ServeConfig
from lineclear.engine.engine import EngineStatistics
from lineclear.model.config import load_config
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
    )


def worker_statistics(
    engine: EngineStatistics, handoffs: wire.HandoffStatistics | None = None
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
    )
