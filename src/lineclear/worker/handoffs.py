"""Puts a worker together: its engine, in memory that peers can reach where there are handoffs, its links, its desk."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lineclear.base.errors import ConfigError
from lineclear.base.ids import WorkerId
from lineclear.config.components import ServeConfig
from lineclear.engine.build import Handoffs, build_engine, engine_of
from lineclear.engine.engine import Engine
from lineclear.kv.layout import Layout, PartShape
from lineclear.model.checkpoint import OnTensor
from lineclear.model.config import load_config
from lineclear.model.digest import model_digest
from lineclear.parallel.meter import SpanSink
from lineclear.protocol.handoff.hello import PeerHello, version_fact
from lineclear.protocol.handoff.names import Peer
from lineclear.protocol.roles import Role
from lineclear.protocol.wire import RankStatistics
from lineclear.transport.endpoint import Endpoint, parse_endpoint
from lineclear.transport.movers.kinds import open_mover
from lineclear.transport.movers.mover import Memory, Mover, MoverError, Writer
from lineclear.transport.peer_links import PeerLinks
from lineclear.worker.decode_desk import DecodeDesk
from lineclear.worker.desk import Desk, LeaveRequest
from lineclear.worker.facts import rank_statistics
from lineclear.worker.follower_desk import FollowerDesk
from lineclear.worker.guarding import build_guard
from lineclear.worker.making import AS_SHIPPED, WorkerMaking
from lineclear.worker.prefill_desk import ALONE, Followers, PrefillDesk
from lineclear.worker.ranks.follower import FollowerLoop
from lineclear.worker.ranks.instance import BuiltRank, build_follower, build_leader, whole_shape, written_parts
from lineclear.worker.ranks.leader import FollowerLinks, LeaderCopies, LeaderRunner
from lineclear.worker.ranks.meeting import OnWaiting
from lineclear.worker.ranks.messages import FilesFound, RankReady
from lineclear.worker.seat import Seat
from lineclear.worker.sender_desk import RankParts, Share

FILES_IN_A_MESSAGE = 65_536


@dataclass(frozen=True)
class Assembly:
    """An engine, and for workers that take part in handoffs the desk and where its ranks listen."""

    engine: Engine
    desk: Desk | None = None
    peer_endpoints: tuple[str, ...] = ()
    followers: FollowerLinks | None = None
    """Of an instance of several ranks."""
    read_ranks: Callable[[], RankStatistics | None] = lambda: None
    """What ranks had to say to each other."""
    close: Callable[[], None] = lambda: None
    """Lets other ranks of an instance end; order: last."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Hears how far a worker is that starts; both may raise to give up."""

    on_tensor: OnTensor
    on_waiting: OnWaiting


class _KvMemory:
    """Memory that peers can reach, opened when its size is known."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._memory: Memory | None = None

    def open(self, num_bytes: int) -> memoryview:
        self._memory = self._mover.open_memory(num_bytes)
        return self._memory.buffer

    def open_writer(self) -> Writer:
        return self._mover.open_writer(self.memory)

    @property
    def memory(self) -> Memory:
        assert self._memory is not None, "the store is not built"
        return self._memory


def assemble(
    config: ServeConfig,
    seat: Seat,
    progress: Progress,
    on_span: SpanSink | None = None,
    making: WorkerMaking = AS_SHIPPED,
) -> Assembly:
    """Load the model and build the parts of a worker, or of the first rank of one.

    `on_span` hears what the passes and lanes of a first rank do, in their threads; `making` is for the lab.

    Raises:
        ConfigError: A setting that model, machine or role cannot meet.
        CheckpointError: The model cannot be loaded.
        MoverError: The mover cannot be had here.
        LifeOverError: Another rank is gone.
    """
    model_dir = Path(config.source.model)
    if seat.role is Role.COLOCATED:
        engine = build_engine(
            config.engine,
            model_dir,
            on_tensor=progress.on_tensor,
            memory_share=seat.memory_share,
            cache=config.cache,
            guard=build_guard(config),
            tier_making=making.tiers,
            pass_making=making.passes,
        )
        return Assembly(engine)
    mover = _open_mover(config, making)
    if seat.role is Role.DECODE:
        return _assemble_decode(config, seat, mover, progress, making)
    if seat.num_ranks > 1:
        return _assemble_leader(config, seat, mover, progress, on_span)
    return _assemble_prefill(config, seat, mover, progress, making)


def assemble_follower(
    config: ServeConfig,
    seat: Seat,
    progress: Progress,
    leave: LeaveRequest | None,
    on_span: SpanSink | None = None,
) -> FollowerLoop:
    """Build another rank of a prefill instance, which is ready then; `on_span` as for the first.

    Raises:
        As `assemble`.
    """
    kv = _KvMemory(_open_mover(config))
    built, link, seat = build_follower(config, seat, kv.open, progress.on_tensor, progress.on_waiting, on_span)
    parts, endpoint = _rank_parts(config, seat, kv, built.parts.store.layout)
    desk = FollowerDesk(parts, link.send)
    if built.copies is not None and built.copies.files is not None:
        found = [each.key for each in built.copies.files.scan()]
        for start in range(0, len(found), FILES_IN_A_MESSAGE):
            link.send(FilesFound(found[start : start + FILES_IN_A_MESSAGE]))
    link.send(RankReady(endpoint))
    copies = None if built.copies is None else built.copies.copies
    return FollowerLoop(built.parts.runner, link, desk, copies, leave, built.communicator.close)


def _assemble_decode(
    config: ServeConfig, seat: Seat, mover: Mover, progress: Progress, making: WorkerMaking
) -> Assembly:
    desk = (making.make_decode_desk or DecodeDesk)(WorkerId(seat.worker_id), seat.life, config.handoff)
    engine, kv = _build_engine(config, seat, mover, progress, desk, making)
    desk.start(engine.scheduler, kv.memory, _open_links(config, seat, engine.store.layout.num_blocks, b""))
    return Assembly(engine, desk)


def _assemble_prefill(
    config: ServeConfig, seat: Seat, mover: Mover, progress: Progress, making: WorkerMaking
) -> Assembly:
    engine, kv = _build_engine(config, seat, mover, progress, None, making)
    desk, endpoint = _prefill_desk(config, seat, kv, engine, ALONE)
    return Assembly(engine, desk, (endpoint,))


def _assemble_leader(
    config: ServeConfig, seat: Seat, mover: Mover, progress: Progress, on_span: SpanSink | None
) -> Assembly:
    kv = _KvMemory(mover)
    built, links = build_leader(config, seat, kv.open, progress.on_tensor, progress.on_waiting, on_span)
    copies = built.copies
    if copies is not None:
        known = [] if copies.files is None else [each.key for each in copies.files.scan()]
        shared = LeaderCopies(copies.copies, links, known, config.ranks.rank_timeout_seconds)
        copies = replace(copies, copies=shared)
    handoffs = Handoffs(open_memory=kv.open, prefillers=None, min_tokens=config.handoff.min_handoff_tokens)
    runner = LeaderRunner(built.parts.runner, links)
    engine = engine_of(
        replace(built.parts, runner=runner), config.engine, handoffs=handoffs, cache=config.cache, copies=copies
    )
    desk, endpoint = _prefill_desk(config, seat, kv, engine, links)
    endpoints = (endpoint, *(links.peer_endpoints[rank] for rank in sorted(links.peer_endpoints)))

    def read_ranks() -> RankStatistics:
        return rank_statistics(built.meter.statistics(), seat.num_ranks)

    return Assembly(engine, desk, endpoints, links, read_ranks, _closing(built, links))


def _closing(built: BuiltRank, links: FollowerLinks) -> Callable[[], None]:
    def close() -> None:
        links.close()
        built.communicator.close()

    return close


def _prefill_desk(
    config: ServeConfig, seat: Seat, kv: _KvMemory, engine: Engine, followers: Followers
) -> tuple[PrefillDesk, str]:
    parts, endpoint = _rank_parts(config, seat, kv, engine.store.layout)
    vocab_size = load_config(Path(config.source.model)).vocab_size
    return PrefillDesk(parts, vocab_size, engine, engine.scheduler, followers), endpoint


def _rank_parts(config: ServeConfig, seat: Seat, kv: _KvMemory, layout: Layout) -> tuple[RankParts, str]:
    """What a rank of a prefill instance sends with, and where decode workers reach it."""
    writer = kv.open_writer()
    links = _open_links(config, seat, layout.num_blocks, writer.identity)
    endpoint = _listen(links, parse_endpoint(seat.peer_endpoint))
    shape = whole_shape(config)
    share = Share(layout, shape, written_parts(seat, shape))
    return RankParts(Peer(WorkerId(seat.worker_id), seat.rank, seat.life), links, writer, share), str(endpoint)


def _open_mover(config: ServeConfig, making: WorkerMaking = AS_SHIPPED) -> Mover:
    if config.engine.device != "cpu":
        allowed = "cpu with handoffs: KV is moved between memories of the CPU so far"
        raise ConfigError("device", config.engine.device, allowed)
    return (making.open_mover or open_mover)(config.handoff.mover)


def _build_engine(
    config: ServeConfig,
    seat: Seat,
    mover: Mover,
    progress: Progress,
    prefillers: DecodeDesk | None,
    making: WorkerMaking,
) -> tuple[Engine, _KvMemory]:
    kv = _KvMemory(mover)
    handoffs = Handoffs(
        open_memory=kv.open,
        prefillers=prefillers,
        min_tokens=config.handoff.min_handoff_tokens,
    )
    engine = build_engine(
        config.engine,
        Path(config.source.model),
        on_tensor=progress.on_tensor,
        handoffs=handoffs,
        memory_share=seat.memory_share,
        cache=config.cache,
        guard=None if prefillers is None else build_guard(config),
        tier_making=making.tiers,
        pass_making=making.passes,
    )
    return engine, kv


def _open_links(config: ServeConfig, seat: Seat, num_blocks: int, writer: bytes) -> PeerLinks:
    hello = PeerHello(
        role=seat.role,
        worker_id=seat.worker_id,
        rank=seat.rank,
        num_ranks=seat.num_ranks,
        life=seat.life,
        facts=peer_facts(config, whole_shape(config)),
        num_blocks=num_blocks,
        writer=writer,
    )
    return PeerLinks(lambda: hello, config.link)


def _listen(links: PeerLinks, endpoint: Endpoint) -> Endpoint:
    try:
        return links.listen(endpoint)
    except OSError as error:
        raise MoverError(f"cannot listen for decode workers on {endpoint}: {error}") from error


def peer_facts(config: ServeConfig, shape: tuple[PartShape, ...]) -> dict[str, str]:
    """What must be equal at both ends of a handoff; `shape` is that of all layers."""
    engine = config.engine
    return {
        **version_fact(),
        "model": model_digest(Path(config.source.model)),
        "layout": hashlib.sha256(repr(shape).encode()).hexdigest()[:16],
        "dtype": engine.dtype,
        "block size": str(engine.block_size),
        "drafting": "on" if engine.draft_tokens else "off",
        "batch-invariant": str(engine.batch_invariant),
        "mover": config.handoff.mover,
    }
