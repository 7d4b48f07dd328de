"""Puts a worker together: its engine, in memory that peers can reach where there are handoffs, its links, its desk."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from lineclear.base.errors import ConfigError
from lineclear.base.ids import WorkerId
from lineclear.config.components import ServeConfig
from lineclear.engine.build import Handoffs, build_engine
from lineclear.engine.engine import Engine
from lineclear.kv.layout import Layout
from lineclear.model.checkpoint import OnTensor
from lineclear.model.config import load_config
from lineclear.model.digest import model_digest
from lineclear.protocol.handoff.hello import PeerHello, version_fact
from lineclear.protocol.handoff.names import Peer
from lineclear.protocol.roles import Role
from lineclear.transport.endpoint import Endpoint, parse_endpoint
from lineclear.transport.movers.kinds import open_mover
from lineclear.transport.movers.mover import Memory, Mover, MoverError
from lineclear.transport.peer_links import PeerLinks
from lineclear.worker.decode_desk import DecodeDesk
from lineclear.worker.desk import Desk
from lineclear.worker.prefill_desk import PrefillDesk
from lineclear.worker.seat import Seat
from lineclear.worker.sender_desk import RankParts, Share


@dataclass(frozen=True)
class Assembly:
    """An engine, and for workers that take part in handoffs the desk and where it listens."""

    engine: Engine
    desk: Desk | None = None
    peer_endpoint: str = ""


def assemble(config: ServeConfig, seat: Seat, on_tensor: OnTensor | None = None) -> Assembly:
    """Load the model and build a worker's parts.

    Raises:
        ConfigError: A setting that model, machine or role cannot meet.
        CheckpointError: The model cannot be loaded.
        MoverError: The mover cannot be had here.
    """
    model_dir = Path(config.source.model)
    if seat.role is Role.COLOCATED:
        engine = build_engine(
            config.engine, model_dir, on_tensor=on_tensor, memory_share=seat.memory_share, cache=config.cache
        )
        return Assembly(engine)
    if config.engine.device != "cpu":
        allowed = "cpu with handoffs: KV is moved between memories of the CPU so far"
        raise ConfigError("device", config.engine.device, allowed)
    mover = open_mover(config.handoff.mover)
    if seat.role is Role.PREFILL:
        return _assemble_prefill(config, seat, mover, on_tensor)
    return _assemble_decode(config, seat, mover, on_tensor)


def _assemble_decode(config: ServeConfig, seat: Seat, mover: Mover, on_tensor: OnTensor | None) -> Assembly:
    desk = DecodeDesk(WorkerId(seat.worker_id), seat.life, config.handoff)
    engine, memory = _build(config, seat, mover, on_tensor, desk)
    desk.start(engine.scheduler, memory, _open_links(config, seat, engine.store.layout, b""))
    return Assembly(engine, desk)


def _assemble_prefill(config: ServeConfig, seat: Seat, mover: Mover, on_tensor: OnTensor | None) -> Assembly:
    engine, memory = _build(config, seat, mover, on_tensor, None)
    writer = mover.open_writer(memory)
    layout = engine.store.layout
    links = _open_links(config, seat, layout, writer.identity)
    endpoint = _listen(links, parse_endpoint(seat.peer_endpoint))
    vocab_size = load_config(Path(config.source.model)).vocab_size
    peer = Peer(WorkerId(seat.worker_id), 0, seat.life)
    desk = PrefillDesk(RankParts(peer, links, writer, Share.whole(layout)), vocab_size, engine, engine.scheduler)
    return Assembly(engine, desk, str(endpoint))


def _build(
    config: ServeConfig, seat: Seat, mover: Mover, on_tensor: OnTensor | None, prefillers: DecodeDesk | None
) -> tuple[Engine, Memory]:
    memories: list[Memory] = []

    def open_memory(num_bytes: int) -> memoryview:
        memories.append(mover.open_memory(num_bytes))
        return memories[0].buffer

    handoffs = Handoffs(
        open_memory=open_memory,
        prefillers=prefillers,
        min_tokens=config.handoff.min_handoff_tokens,
    )
    engine = build_engine(
        config.engine,
        Path(config.source.model),
        on_tensor=on_tensor,
        handoffs=handoffs,
        memory_share=seat.memory_share,
        cache=config.cache,
    )
    return engine, memories[0]


def _open_links(config: ServeConfig, seat: Seat, layout: Layout, writer: bytes) -> PeerLinks:
    hello = PeerHello(
        role=seat.role,
        worker_id=seat.worker_id,
        life=seat.life,
        facts=peer_facts(config, layout),
        num_blocks=layout.num_blocks,
        writer=writer,
    )
    return PeerLinks(lambda: hello, config.link)


def _listen(links: PeerLinks, endpoint: Endpoint) -> Endpoint:
    try:
        return links.listen(endpoint)
    except OSError as error:
        raise MoverError(f"cannot listen for decode workers on {endpoint}: {error}") from error


def peer_facts(config: ServeConfig, layout: Layout) -> dict[str, str]:
    """What must be equal at both ends of a handoff."""
    engine = config.engine
    return {
        **version_fact(),
        "model": model_digest(Path(config.source.model)),
        "layout": hashlib.sha256(repr(layout.shape).encode()).hexdigest()[:16],
        "dtype": engine.dtype,
        "block size": str(engine.block_size),
        "drafting": "on" if engine.draft_tokens else "off",
        "batch-invariant": str(engine.batch_invariant),
        "mover": config.handoff.mover,
    }
