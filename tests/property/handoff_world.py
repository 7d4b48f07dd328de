"""A decode worker and a prefill instance with their real desks and schedulers, over toy models and a fake mover.

The stores of both toy models lie in memories of the mover, row by row as digests of what a slot was computed for. So a
row that was written late, to the wrong place, or for somebody else is found when it is read.

An instance of two ranks has the draft layer's store in the memory of the second. What its ranks say to each other waits
in queues until a turn takes it in.
"""

import math
import random
import socket
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Self

from lineclear.base.ids import SequenceId, WorkerId
from lineclear.config.components import HandoffConfig, LinkConfig
from lineclear.kv.layout import Layout, PartShape
from lineclear.kv.tiers import TiersConfig
from lineclear.protocol.handoff.hello import PeerHello
from lineclear.protocol.handoff.names import Peer
from lineclear.protocol.handoff.ranks import ToFollower, ToLeader
from lineclear.protocol.roles import Role
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.planner import Prefillers
from lineclear.schedule.sequence import Sequence
from lineclear.transport.endpoint import UnixEndpoint
from lineclear.transport.movers.fake import FakeMover, FakeWriter
from lineclear.transport.movers.mover import Memory
from lineclear.transport.peer_links import PeerLinks
from lineclear.worker.decode_desk import DecodeDesk
from lineclear.worker.desk import Desk, LifeOverError
from lineclear.worker.follower_desk import FollowerDesk
from lineclear.worker.prefill_desk import ALONE, PrefillDesk
from lineclear.worker.sender_desk import RankParts, Share
from tests.property.tiered_toy_engine import TieredToyEngine
from tests.property.toy_engine import EOS, VOCAB_SIZE, ToyEngine

ROW_BYTES = 8
SHAPE = (PartShape(0, "latent", ROW_BYTES), PartShape(1, "latent", ROW_BYTES))
"""The target's part and the draft layer's."""

LINK = LinkConfig(heartbeat_seconds=60.0, peer_timeout_seconds=3600.0)
PATIENCE_SECONDS = 100.0


class MemoryStore(MutableMapping[int, tuple[int, ...]]):
    """Rows in a memory. What is read equals whatever has the same digest."""

    def __init__(self, buffer: memoryview, offset: int) -> None:
        self._buffer = buffer
        self._offset = offset

    def __setitem__(self, slot: int, value: tuple[int, ...]) -> None:
        self._buffer[self._span(slot)] = bytes(value) if isinstance(value, Row) else _digest(value)

    def __getitem__(self, slot: int) -> "Row":  # type: ignore[override]
        return Row(bytes(self._buffer[self._span(slot)]))

    def __delitem__(self, slot: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def _span(self, slot: int) -> slice:
        start = self._offset + slot * ROW_BYTES
        return slice(start, start + ROW_BYTES)


class Row(tuple[int, ...]):
    """A digest that compares like the tuple it was made of."""

    def __new__(cls, digest: bytes) -> Self:
        return super().__new__(cls, digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and bytes(self) == _digest(other)

    __hash__ = None  # type: ignore[assignment]


def _digest(value: tuple[int, ...]) -> bytes:
    return blake2b(bytes(value), digest_size=ROW_BYTES).digest()


@dataclass(frozen=True)
class Stores:
    """Where the rows of both toy models lie, in blocks that are numbered alike."""

    num_blocks: int
    block_size: int
    target: MemoryStore
    draft: MemoryStore

    @staticmethod
    def of(layout: Layout, memory: Memory) -> "Stores":
        """Both in one memory."""
        target, draft = layout.offsets[:2]
        stores = MemoryStore(memory.buffer, target), MemoryStore(memory.buffer, draft)
        return Stores(layout.num_blocks, layout.block_size, *stores)


class ToyWorker(ToyEngine):
    """The toy engine as a worker's engine, in memory that can be reached."""

    def __init__(self, config: ScheduleConfig, stores: Stores, prefillers: Prefillers | None = None) -> None:
        super().__init__(config, stores.num_blocks, stores.block_size, prefillers)
        self._target_store = stores.target
        self._draft_store = stores.draft

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def cancel(self, sequence_id: SequenceId) -> bool:
        return self.scheduler.cancel(sequence_id)

    def _check_progress(self, planned: list[SequenceId], before: list[Sequence], running: list[Sequence]) -> None:
        """The oldest may stand still here: it waits for those that receive, or has been sent to its end."""


class TieredToyWorker(TieredToyEngine):
    """The same with host memory and a disk below."""

    def __init__(
        self,
        config: ScheduleConfig,
        stores: Stores,
        tiers: TiersConfig,
        rng: random.Random,
        prefillers: Prefillers | None = None,
    ) -> None:
        super().__init__(config, stores.num_blocks, stores.block_size, tiers, rng, prefillers)
        self._target_store = stores.target
        self._draft_store = stores.draft

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def cancel(self, sequence_id: SequenceId) -> bool:
        return self.scheduler.cancel(sequence_id)


class RankSide:
    """What one rank of a prefill instance has for itself, in one life."""

    def __init__(self, world: "HandoffWorld", life: int, rank: int) -> None:
        shape = SHAPE if world.num_ranks == 1 else (SHAPE[rank],)
        self.layout = Layout(shape, world.prefill_blocks, world.block_size)
        self.memory = world.mover.open_memory(self.layout.num_bytes)
        self.writer = world.open_writer(self.memory)
        self.is_alive = True
        hello = PeerHello(
            role=Role.PREFILL,
            worker_id="prefill-0",
            rank=rank,
            num_ranks=world.num_ranks,
            life=life,
            facts={},
            num_blocks=self.layout.num_blocks,
            writer=self.writer.identity,
        )
        self.links = PeerLinks(lambda: hello, LINK, world.now)
        self.endpoint = self.links.listen(UnixEndpoint(str(world.folder / f"prefill-{life}-{rank}")))
        share = Share(self.layout, SHAPE, shape)
        self.parts = RankParts(Peer(WorkerId("prefill-0"), rank, life), self.links, self.writer, share, world.now)

    def kill(self) -> None:
        """As a process dies: nothing it has posted lands any more, its links close."""
        self.is_alive = False
        self.writer.kill()
        self.links.close()


class FollowerQueues:
    """The other rank, as the first one's desk sees it."""

    count = 1

    def __init__(self) -> None:
        self.to_follower: deque[ToFollower] = deque()
        self.to_leader: deque[ToLeader] = deque()

    def tell(self, message: ToFollower) -> None:
        self.to_follower.append(message)

    def poll(self) -> None:
        """It is all there already."""

    def take_released(self) -> list[tuple[int, ToLeader]]:
        released = [(1, message) for message in self.to_leader]
        self.to_leader.clear()
        return released

    def filenos(self) -> tuple[int, ...]:
        return ()

    def seconds_until_due(self) -> float:
        return math.inf


class PrefillSide:
    """One life of a prefill instance: the first rank has the engine, a second one follows."""

    def __init__(self, world: "HandoffWorld", life: int) -> None:
        self.ranks = [RankSide(world, life, rank) for rank in range(world.num_ranks)]
        leader = self.ranks[0]
        self.follower_link = FollowerQueues()
        self.to_follower, self.to_leader = self.follower_link.to_follower, self.follower_link.to_leader
        stores = Stores.of(leader.layout, leader.memory)
        if world.num_ranks == 2:
            draft = MemoryStore(self.ranks[1].memory.buffer, self.ranks[1].layout.offsets[0])
            stores = replace(stores, draft=draft)
        self.engine = world.open_worker(stores, None)
        followers = self.follower_link if world.num_ranks == 2 else ALONE
        self.desk = PrefillDesk(leader.parts, VOCAB_SIZE, self.engine, self.engine.scheduler, followers)
        self.follower = FollowerDesk(self.ranks[1].parts, self.to_leader.append) if world.num_ranks == 2 else None

    @property
    def writer(self) -> FakeWriter:
        """The first rank's."""
        return self.ranks[0].writer

    @property
    def is_settled(self) -> bool:
        """Whether no rank writes or computes anything, and none has anything to say to another."""
        is_follower_settled = self.follower is None or self.follower.is_settled
        return self.desk.is_settled and is_follower_settled and not self.to_follower and not self.to_leader

    def flying(self) -> list[tuple[FakeWriter, int]]:
        """The writes that may still land."""
        return [(rank.writer, ticket) for rank in self.ranks for ticket in rank.writer.flying]

    def turn_leader(self) -> None:
        """A turn of the first rank."""
        turn(self.desk, self.engine)

    def turn_follower(self, num_messages: int) -> None:
        """A turn of the second rank, which takes in the next so many messages."""
        assert self.follower is not None
        self.follower.turn()
        for _ in range(min(num_messages, len(self.to_follower))):
            self.follower.on_leader(self.to_follower.popleft())


class HandoffWorld:
    """Both sides, one clock, and what can go wrong between them."""

    def __init__(
        self,
        folder: Path,
        config: ScheduleConfig,
        block_size: int,
        decode_blocks: int,
        prefill_blocks: int,
        desk: Callable[[WorkerId, int, HandoffConfig, Callable[[], float]], DecodeDesk] = DecodeDesk,
        tiers: tuple[TiersConfig, random.Random] | None = None,
        num_ranks: int = 1,
    ) -> None:
        self.tiers = tiers
        self.num_ranks = num_ranks
        self.folder = folder
        self.config = config
        self.block_size = block_size
        self.prefill_blocks = prefill_blocks
        self.time = 0.0
        self.mover = FakeMover()
        self._writers: list[FakeWriter] = []
        self._lives = count(1)
        layout = Layout(SHAPE, decode_blocks, block_size)
        memory = self.mover.open_memory(layout.num_bytes)
        handoffs = HandoffConfig(first_token_seconds=PATIENCE_SECONDS)
        self.decode_desk = desk(WorkerId("decode-0"), 1, handoffs, self.now)
        self.decode = self.open_worker(Stores.of(layout, memory), self.decode_desk)
        hello = PeerHello(role=Role.DECODE, worker_id="decode-0", life=1, facts={}, num_blocks=layout.num_blocks)
        self.links = PeerLinks(lambda: hello, LINK, self.now)
        self.decode_desk.start(self.decode.scheduler, memory, self.links)
        self.prefill: PrefillSide | None = None
        self.start_prefill()

    def open_worker(self, stores: Stores, prefillers: Prefillers | None) -> "ToyWorker | TieredToyWorker":
        if self.tiers is None:
            return ToyWorker(self.config, stores, prefillers)
        return TieredToyWorker(self.config, stores, *self.tiers, prefillers)

    def open_writer(self, memory: Memory) -> FakeWriter:
        """A rank's, which is closed with the world: also those of the dead have descriptors."""
        self._writers.append(self.mover.open_writer(memory))
        return self._writers[-1]

    def turn_copies(self) -> None:
        """Copies between tiers get on, on both sides."""
        engines = [self.decode] if self.prefill is None else [self.decode, self.prefill.engine]
        for engine in engines:
            if isinstance(engine, TieredToyWorker):
                engine.turn_copies()

    def now(self) -> float:
        return self.time

    def start_prefill(self) -> None:
        self.prefill = PrefillSide(self, next(self._lives))
        self.decode_desk.on_instances([str(rank.endpoint) for rank in self.prefill.ranks])

    def kill_prefill(self) -> None:
        """All its processes die."""
        assert self.prefill is not None
        for rank in self.prefill.ranks:
            if rank.is_alive:
                rank.kill()
        self.prefill = None

    def kill_rank(self, number: int) -> None:
        """One process of the instance dies, and the others follow when their turn comes."""
        assert self.prefill is not None
        self.prefill.ranks[number].kill()
        if not any(rank.is_alive for rank in self.prefill.ranks):
            self.prefill = None

    def cut_link(self) -> None:
        """The connection breaks; both sides live."""
        for link in list(self.links._links.values()):
            link.connection.shutdown(socket.SHUT_RDWR)

    def fall_silent(self) -> None:
        """Decode has heard nothing for longer than it waits for anybody."""
        for link in self.links._links.values():
            link.last_heard = -math.inf

    def submit(self, prompt: list[int], sampling: SamplingParams) -> Sequence:
        sequence = Sequence(SequenceId(len(self.decode.sequences)), prompt, sampling)
        self.decode_desk.submit(sequence)
        self.decode.submit(sequence)
        return sequence

    def turn_prefill(self) -> None:
        """A turn of the prefill instance's first rank."""
        self._turn_rank(0, lambda prefill: prefill.turn_leader())

    def turn_follower(self, num_messages: int) -> None:
        """A turn of its second, if it has one."""
        if self.num_ranks == 2:
            self._turn_rank(1, lambda prefill: prefill.turn_follower(num_messages))

    def _turn_rank(self, number: int, turn_it: Callable[[PrefillSide], None]) -> None:
        """If the life of a rank is over, or another rank is gone, it ends, as its process would."""
        prefill = self.prefill
        if prefill is None or not prefill.ranks[number].is_alive:
            return
        if not all(rank.is_alive for rank in prefill.ranks):
            self.kill_rank(number)
            return
        try:
            turn_it(prefill)
        except LifeOverError:
            self.kill_rank(number)

    def turn_decode(self) -> None:
        turn(self.decode_desk, self.decode)

    def close(self) -> None:
        self.links.close()
        if self.prefill is not None:
            for rank in self.prefill.ranks:
                rank.links.close()
        for writer in self._writers:
            writer.close()
        self._writers.clear()


def turn(desk: Desk, engine: ToyWorker | TieredToyWorker) -> None:
    """What a worker's loop does in a turn."""
    desk.turn()
    if engine.has_work:
        desk.on_updates(engine.step())
    engine.scheduler.check()


def world_with_a_write_in_flight(folder: Path) -> HandoffWorld:
    """A world with a prompt whose first write flies."""
    config = ScheduleConfig(
        max_batch_tokens=16,
        max_running=4,
        max_waiting=8,
        max_model_len=40,
        draft_tokens=0,
        double_cost_len=100,
        min_handoff_tokens=4,
        eos_token_ids=frozenset({EOS}),
    )
    world = HandoffWorld(folder, config, block_size=4, decode_blocks=20, prefill_blocks=20)
    until(world, lambda: world.decode_desk.statistics().num_peers == 1)
    world.submit([1] * 12, SamplingParams(max_tokens=2, ignore_eos=True))
    until(world, lambda: bool(world.prefill and world.prefill.writer.flying))
    return world


def until(world: HandoffWorld, is_so: Callable[[], bool], *, prefill: bool = True) -> None:
    """Let time pass until something is so."""
    for _ in range(500):
        if is_so():
            return
        world.time += 0.05
        if prefill:
            world.turn_prefill()
            world.turn_follower(10)
        world.turn_decode()
    raise AssertionError("it does not come about")
