"""Puts a rank of an instance together: meets the others, loads the model, builds what computes and what copies.

All ranks do the same in the same order, since they compare and agree on the way; then rank 0 builds what plans, and the
others what follows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lineclear.base.errors import ConfigError
from lineclear.config.components import MAX_AUTO_TOTAL_TOKENS, ServeConfig
from lineclear.engine.build import DTYPES, EngineParts, build_parts
from lineclear.engine.build_tiers import PRODUCT, BuiltCopies, build_copies
from lineclear.engine.store import kv_layout
from lineclear.kv.layout import PartShape
from lineclear.model.checkpoint import OnTensor
from lineclear.model.config import GlmConfig, load_config
from lineclear.parallel.build import RankConfig, RankMaking
from lineclear.parallel.gloo_wire import GlooWire
from lineclear.parallel.meter import Meter, SpanSink
from lineclear.parallel.planning.ownership import own_layers
from lineclear.parallel.rank_communicator import RankCommunicator
from lineclear.transport.endpoint import TcpEndpoint, parse_endpoint
from lineclear.transport.link import address_towards
from lineclear.worker.ranks.follower import LeaderLink
from lineclear.worker.ranks.leader import FollowerLinks
from lineclear.worker.ranks.meeting import (
    OnWaiting,
    PatientMaking,
    arrive_as_follower,
    arrive_as_leader,
    find_leader,
    open_store,
    receive_followers,
)
from lineclear.worker.seat import Seat

GIB = 1024**3
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class BuiltRank:
    """What every rank has."""

    parts: EngineParts
    copies: BuiltCopies | None
    communicator: RankCommunicator
    meter: Meter


def build_leader(
    config: ServeConfig,
    seat: Seat,
    open_memory: Callable[[int], memoryview],
    on_tensor: OnTensor,
    on_waiting: OnWaiting,
    on_span: SpanSink | None = None,
) -> tuple[BuiltRank, FollowerLinks]:
    """Build rank 0 together with the others; `on_span` hears what its passes and lanes do.

    Raises:
        ConfigError: Ranks differ, or a setting cannot be met by one of them.
        CheckpointError: The model cannot be loaded.
        LifeOverError: A rank is gone.
    """
    links, store = receive_followers(seat, config.link, on_waiting)
    wire = GlooWire(store, 0, seat.num_ranks, config.ranks.rank_timeout_seconds, _address(seat))

    def keep_alive(num_read: int, num_all: int) -> None:
        links.poll()
        on_tensor(num_read, num_all)

    built = _build(config, seat, wire, open_memory, keep_alive, lambda: arrive_as_leader(links, on_waiting), on_span)
    while len(links.peer_endpoints) < links.count:
        links.poll(1.0)
        on_waiting("waiting for the other ranks")
    return built, links


def build_follower(
    config: ServeConfig,
    seat: Seat,
    open_memory: Callable[[int], memoryview],
    on_tensor: OnTensor,
    on_waiting: OnWaiting,
    on_span: SpanSink | None = None,
) -> tuple[BuiltRank, LeaderLink, Seat]:
    """Build another rank; returns its link to rank 0, and its seat with the name and the life of rank 0.

    `on_span` hears what its passes and lanes do.

    Raises:
        ConfigError: Ranks differ, or a setting cannot be met by one of them.
        CheckpointError: The model cannot be loaded.
        LifeOverError: Rank 0 is gone.
    """
    link, welcome = find_leader(seat, config.link, on_waiting)
    store = open_store(welcome.store)
    wire = GlooWire(store, seat.rank, seat.num_ranks, config.ranks.rank_timeout_seconds, _address(seat))

    def keep_alive(num_read: int, num_all: int) -> None:
        link.poll(0)
        on_tensor(num_read, num_all)

    built = _build(config, seat, wire, open_memory, keep_alive, lambda: arrive_as_follower(link, on_waiting), on_span)
    return built, link, replace(seat, worker_id=welcome.worker_id, life=welcome.life)


def written_parts(seat: Seat, shape: tuple[PartShape, ...]) -> tuple[PartShape, ...]:
    """The parts that a rank writes to decode workers: those of the layers that it owns, whoever stores them beside it.

    Raises:
        ConfigError: There are more ranks than layers.
    """
    layers = own_layers(shape, seat.num_ranks).layers_of(seat.rank)
    return tuple(part for part in shape if part.layer in layers)


def whole_shape(config: ServeConfig) -> tuple[PartShape, ...]:
    """The parts of all layers, as decode workers store them."""
    model = load_config(Path(config.source.model))
    return kv_layout(model, 1, config.engine.block_size, DTYPES[config.engine.dtype]).shape


def _build(
    config: ServeConfig,
    seat: Seat,
    wire: GlooWire,
    open_memory: Callable[[int], memoryview],
    on_tensor: OnTensor,
    arrive: Callable[[], None],
    on_span: SpanSink | None,
) -> BuiltRank:
    meter = Meter(on_span)
    communicator = RankCommunicator(wire, torch.device(config.engine.device), on_span=meter)
    model_dir = Path(config.source.model)
    ranks = RankConfig(kv_layout=config.ranks.kv_layout, staging_bytes=staging_bytes(config))
    making = PatientMaking(RankMaking(ranks, config.engine, model_dir, communicator, meter), arrive)
    parts = build_parts(
        config.engine,
        model_dir,
        on_tensor=on_tensor,
        open_memory=open_memory,
        memory_share=seat.memory_share,
        pass_making=making,
    )
    copies = None
    if config.cache.host_cache_gib:
        copies = build_copies(config.cache, config.engine, model_dir, parts.store, PRODUCT, making.agree)
    return BuiltRank(parts, copies, communicator, meter)


def staging_bytes(config: ServeConfig) -> int:
    """Bytes of staging: as asked for, or room for the longest sequence and the new blocks of a batch.

    Raises:
        ConfigError: The longest sequence alone has no room.
    """
    if config.ranks.kv_layout != "layersplit":
        return 0
    engine = config.engine
    model = load_config(Path(config.source.model))
    longest = min(
        model.max_position_embeddings,
        engine.max_model_len or model.max_position_embeddings,
        engine.max_total_tokens or MAX_AUTO_TOTAL_TOKENS,
    )
    row_bytes = staging_row_bytes(model, config)
    block_bytes = engine.block_size * row_bytes
    least_blocks = -(-longest // engine.block_size) + 1
    asked_gib = config.ranks.staging_gib
    if asked_gib is not None:
        least_gib = math.ceil(1000 * least_blocks * block_bytes / GIB) / 1000
        if asked_gib < least_gib:
            allowed = f"at least {least_gib:g}, for one sequence of {longest} tokens at {row_bytes} B each"
            raise ConfigError("staging_gib", asked_gib, allowed)
        return int(asked_gib * GIB)
    num_batch_blocks = -(-engine.max_batch_tokens // engine.block_size) + engine.max_running
    return (least_blocks + num_batch_blocks) * block_bytes


def staging_row_bytes(model: GlmConfig, config: ServeConfig) -> int:
    """Of one token in one buffer of each part."""
    return (model.latent_width + model.index_head_dim) * DTYPES[config.engine.dtype].itemsize


def _address(seat: Seat) -> str:
    """Of this machine, by which other ranks reach it."""
    endpoint = parse_endpoint(seat.rank_endpoint)
    if not isinstance(endpoint, TcpEndpoint):
        return LOOPBACK
    return endpoint.host if seat.rank == 0 else address_towards(endpoint)
