"""A decode worker and a prefill instance with their real desks and schedulers, over toy models and a fake mover.

The stores of both toy models lie in memories of the mover, row by row as digests of what a slot was computed for. So a
row that was written late, to the wrong place, or for somebody else is found when it is read.
"""

import math
import random
import socket
from collections.abc import Callable, Iterator, MutableMapping
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
from lineclear.protocol.roles import Role
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.planner import Prefillers
from lineclear.schedule.sequence import Sequence
from lineclear.transport.endpoint import UnixEndpoint
from lineclear.transport.movers.fake import FakeMover
from lineclear.transport.movers.mover import Memory
from lineclear.transport.peer_links import PeerLinks
from lineclear.worker.decode_desk import DecodeDesk
from lineclear.worker.desk import Desk, LifeOverError
from lineclear.worker.prefill_desk import PrefillDesk
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


class ToyWorker(ToyEngine):
    """The toy engine as a worker's engine, in a memory that can be reached."""

    def __init__(
        self, config: ScheduleConfig, layout: Layout, memory: Memory, prefillers: Prefillers | None = None
    ) -> None:
        super().__init__(config, layout.num_blocks, layout.block_size, prefillers)
        target, draft = layout.offsets[:2]
        self._target_store = MemoryStore(memory.buffer, target)
        self._draft_store = MemoryStore(memory.buffer, draft)

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
        layout: Layout,
        memory: Memory,
        tiers: TiersConfig,
        rng: random.Random,
        prefillers: Prefillers | None = None,
    ) -> None:
        super().__init__(config, layout.num_blocks, layout.block_size, tiers, rng, prefillers)
        target, draft = layout.offsets[:2]
        self._target_store = MemoryStore(memory.buffer, target)
        self._draft_store = MemoryStore(memory.buffer, draft)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def cancel(self, sequence_id: SequenceId) -> bool:
        return self.scheduler.cancel(sequence_id)


class PrefillSide:
    """One life of a prefill instance."""

    def __init__(self, world: "HandoffWorld", life: int) -> None:
        layout = world.layout(world.prefill_blocks)
        memory = world.mover.open_memory(layout.num_bytes)
        self.writer = world.mover.open_writer(memory)
        self.engine = world.open_worker(layout, memory, None)
        hello = world.hello(Role.PREFILL, "prefill-0", life, layout, self.writer.identity)
        self.links = PeerLinks(lambda: hello, LINK, world.now)
        self.endpoint = self.links.listen(UnixEndpoint(str(world.folder / f"prefill-{life}")))
        peer = Peer(WorkerId("prefill-0"), 0, life)
        scheduler = self.engine.scheduler
        parts = RankParts(peer, self.links, self.writer, Share.whole(layout), world.now)
        self.desk = PrefillDesk(parts, VOCAB_SIZE, self.engine, scheduler)


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
    ) -> None:
        self.tiers = tiers
        self.folder = folder
        self.config = config
        self.block_size = block_size
        self.prefill_blocks = prefill_blocks
        self.time = 0.0
        self.mover = FakeMover()
        self._lives = count(1)
        layout = self.layout(decode_blocks)
        memory = self.mover.open_memory(layout.num_bytes)
        handoffs = HandoffConfig(first_token_seconds=PATIENCE_SECONDS)
        self.decode_desk = desk(WorkerId("decode-0"), 1, handoffs, self.now)
        self.decode = self.open_worker(layout, memory, self.decode_desk)
        hello = self.hello(Role.DECODE, "decode-0", 1, layout, b"")
        self.links = PeerLinks(lambda: hello, LINK, self.now)
        self.decode_desk.start(self.decode.scheduler, memory, self.links)
        self.prefill: PrefillSide | None = None
        self.start_prefill()

    def open_worker(
        self, layout: Layout, memory: Memory, prefillers: Prefillers | None
    ) -> "ToyWorker | TieredToyWorker":
        if self.tiers is None:
            return ToyWorker(self.config, layout, memory, prefillers)
        return TieredToyWorker(self.config, layout, memory, *self.tiers, prefillers)

    def turn_copies(self) -> None:
        """Copies between tiers get on, on both sides."""
        engines = [self.decode] if self.prefill is None else [self.decode, self.prefill.engine]
        for engine in engines:
            if isinstance(engine, TieredToyWorker):
                engine.turn_copies()

    def now(self) -> float:
        return self.time

    def layout(self, num_blocks: int) -> Layout:
        return Layout(SHAPE, num_blocks, self.block_size)

    def hello(self, role: Role, worker_id: str, life: int, layout: Layout, writer: bytes) -> PeerHello:
        return PeerHello(
            role=role, worker_id=worker_id, life=life, facts={}, num_blocks=layout.num_blocks, writer=writer
        )

    def start_prefill(self) -> None:
        self.prefill = PrefillSide(self, next(self._lives))
        self.decode_desk.on_instances([str(self.prefill.endpoint)])

    def kill_prefill(self) -> None:
        """As a process dies: nothing it has posted lands any more, its links close."""
        assert self.prefill is not None
        self.prefill.writer.kill()
        self.prefill.links.close()
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
        """A turn of the prefill instance; if its life is over it ends, as its process would."""
        if self.prefill is None:
            return
        try:
            turn(self.prefill.desk, self.prefill.engine)
        except LifeOverError:
            self.kill_prefill()

    def turn_decode(self) -> None:
        turn(self.decode_desk, self.decode)

    def close(self) -> None:
        self.links.close()
        if self.prefill is not None:
            self.prefill.links.close()


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
        world.turn_decode()
    raise AssertionError("it does not come about")
