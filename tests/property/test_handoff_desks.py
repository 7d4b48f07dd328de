"""Both desks with real schedulers: whatever the mover, the links and the lives do, every answer is right and ends once.

Random walks: writes land run by run, fail and get lost; the prefill instance dies and comes back, its link breaks;
clients leave; time passes. A walk ends with everything landed and settled.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.tiers import TiersConfig
from lineclear.protocol.handoff.names import Epoch
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.holdings import Holdings
from lineclear.schedule.sequence import Sequence, SequenceState
from lineclear.transport.movers.fake import FakeAdmission, FakeWriter
from lineclear.worker.decode_desk import DecodeDesk
from lineclear.worker.instances import Instance
from lineclear.worker.prefill_desk import PrefillDesk
from tests.property.handoff_world import PATIENCE_SECONDS, HandoffWorld, PrefillSide
from tests.property.hasty_desk import HastyDesk, end_remote_write_once
from tests.property.toy_engine import EOS, VOCAB_SIZE, reference

NUM_WALKS = 60
NUM_ACTIONS = 400
MAX_OPEN = 5
"""Sequences at once: more would only be refused."""

ACTIONS = {
    "submit": 10, "turn_decode": 30, "turn_prefill": 25, "land": 25, "wait": 4, "cancel": 1, "fail": 0.5, "lose": 0.4,
    "kill_prefill": 0.5, "start_prefill": 3, "cut_link": 0.5, "fall_silent": 2, "turn_follower": 25,
}  # fmt: skip


class Walk:
    """One world, and a random source that decides what happens in it."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        desk: Callable[..., DecodeDesk] = DecodeDesk,
        *,
        has_tiers: bool = False,
        num_ranks: int = 1,
    ) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        config = ScheduleConfig(
            max_batch_tokens=rng.choice((2, 5, 16)),
            max_running=rng.choice((1, 3, 8)),
            max_waiting=8,
            max_model_len=40,
            draft_tokens=rng.choice((0, 1, 3)),
            double_cost_len=100,
            min_handoff_tokens=rng.choice((1, 1, 4, 8)),
            eos_token_ids=frozenset({EOS}),
        )
        block_size = rng.choice((1, 2, 4))
        num_blocks = [-(-rng.choice((40, 60, 120)) // block_size) for _ in range(2)]
        tiers = (_draw_tiers(rng, block_size), rng) if has_tiers else None
        self.world = HandoffWorld(folder, config, block_size, *num_blocks, desk, tiers, num_ranks)
        self.cancelled: set[int] = set()
        self.lost: set[tuple[FakeWriter, int]] = set()

    def run(self) -> None:
        names, weights = list(ACTIONS), list(ACTIONS.values())
        for name in self.rng.choices(names, weights, k=NUM_ACTIONS):
            getattr(self, name)()
            self.world.turn_copies()
        self.finish()

    def submit(self) -> None:
        if len(self._open_sequences()) >= MAX_OPEN:
            return
        rng = self.rng
        prefix = rng.choice(([], [1] * 9, [1, 2, 3, 4] * 4))
        prompt = prefix + [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randint(1, 16))]
        max_tokens = rng.randint(1, 12)
        self.world.submit(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=rng.random() < 0.7))

    def cancel(self) -> None:
        if sequences := self._open_sequences():
            sequence = self.rng.choice(sequences)
            self.world.decode.cancel(sequence.sequence_id)
            self.cancelled.add(sequence.sequence_id)

    def turn_decode(self) -> None:
        self.world.turn_decode()

    def turn_prefill(self) -> None:
        self.world.turn_prefill()

    def turn_follower(self) -> None:
        self.world.turn_follower(self.rng.choice((0, 1, 1, 10)))

    def wait(self) -> None:
        self.world.time += self.rng.choice((0.1, 0.3, 1.0, 5.0))

    def land(self) -> None:
        if (flight := self._flying()) is not None:
            flight[0].land(flight[1], self.rng.choice((1, 2, None)))

    def fail(self) -> None:
        if (flight := self._flying()) is not None:
            flight[0].fail(flight[1])

    def lose(self) -> None:
        if (flight := self._flying()) is not None and flight not in self.lost:
            self.lost.add(flight)
            flight[0].lose(flight[1])

    def kill_prefill(self) -> None:
        """One of its ranks, and with it all of it."""
        if self.world.prefill is not None:
            alive = [number for number, rank in enumerate(self.world.prefill.ranks) if rank.is_alive]
            self.world.kill_rank(self.rng.choice(alive))

    def start_prefill(self) -> None:
        if self.world.prefill is None:
            self.world.start_prefill()

    def cut_link(self) -> None:
        if self.world.prefill is not None:
            self.world.cut_link()

    def fall_silent(self) -> None:
        self.world.fall_silent()

    def finish(self) -> None:
        """Let everything land and settle, and look at what has come of it."""
        world = self.world
        for _ in range(3000):
            if not self.is_open():
                break
            world.time += 0.1
            self.start_prefill()
            while (flight := self._flying()) is not None:
                flight[0].land(flight[1])
            world.turn_prefill()
            world.turn_follower(10)
            world.turn_decode()
            world.turn_copies()
        assert not self.is_open(), "no liveness"
        for sequence in world.decode.sequences.values():
            self._check_ending(sequence)
        for engine in (world.decode, world.prefill.engine):
            statistics = engine.pool.statistics()
            assert statistics.held == statistics.idle, "a block is held after the end"

    def is_open(self) -> bool:
        world = self.world
        is_settled = not world.decode_desk.statistics().num_open and world.prefill and world.prefill.is_settled
        engines = [world.decode, world.prefill.engine] if world.prefill else [world.decode]
        is_copying = any(engine.tiers is not None and engine.copies for engine in engines)
        return not is_settled or world.decode.has_work or bool(self._open_sequences()) or is_copying

    def _flying(self) -> tuple[FakeWriter, int] | None:
        """One of the writes that may still land."""
        flying = self.world.prefill.flying() if self.world.prefill else []
        return self.rng.choice(flying) if flying else None

    def _open_sequences(self) -> list[Sequence]:
        sequences = self.world.decode.sequences.values()
        return [sequence for sequence in sequences if sequence.state is not SequenceState.FINISHED]

    def _check_ending(self, sequence: Sequence) -> None:
        decode = self.world.decode
        updates = decode.updates[sequence.sequence_id]
        assert [update.finish_reason is None for update in updates] == [True] * (len(updates) - 1) + [False]
        last, output = updates[-1], decode.output(sequence)
        expected = reference(sequence.prompt_token_ids, sequence.sampling, decode.config.max_model_len)
        if last.finish_reason == "error":
            assert not output
            assert last.error == f"no first token within {PATIENCE_SECONDS:g} s"
        elif last.finish_reason == "cancelled":
            assert sequence.sequence_id in self.cancelled
            assert output == expected.token_ids[: len(output)]
        else:
            assert (output, last.finish_reason) == (expected.token_ids, expected.finish_reason)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Callable[..., Walk]]:
    walks: list[Walk] = []

    def make(
        seed: int, desk: Callable[..., DecodeDesk] = DecodeDesk, *, has_tiers: bool = False, num_ranks: int = 1
    ) -> Walk:
        folder = tmp_path / str(len(walks))
        folder.mkdir()
        walks.append(Walk(seed, folder, desk, has_tiers=has_tiers, num_ranks=num_ranks))
        return walks[-1]

    yield make
    for each in walks:
        each.world.close()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_answer_is_right_and_ends_once_whatever_happens(walk: Callable[..., Walk], num_ranks: int) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(NUM_WALKS):
        each = walk(seed, num_ranks=num_ranks)
        each.run()
        statistics = each.world.decode_desk.statistics()
        outcomes.update({"done": statistics.num_done, **statistics.num_failed})
        each.world.close()
    # What the walks are for has happened, and often.
    assert outcomes["done"] > 3 * NUM_WALKS
    for reason in ("cancelled", "peer_lost", "write_failed", "write_unknown"):
        assert outcomes[reason] >= 5, outcomes


def test_the_same_with_tiers_below_both_workers(walk: Callable[..., Walk]) -> None:
    """Loads land in blocks that handoffs send and receive beside; some of them fail."""
    num_done = num_loads = num_failed = 0
    for seed in range(NUM_WALKS):
        each = walk(seed, has_tiers=True)
        each.run()
        num_done += each.world.decode_desk.statistics().num_done
        for engine in (each.world.decode, each.world.prefill.engine):
            num_loads += engine.num_loads
            num_failed += engine.num_failed_loads
        each.world.close()
    assert num_done > 2 * NUM_WALKS
    assert num_loads > NUM_WALKS
    assert num_failed > 0


def _draw_tiers(rng: random.Random, block_size: int) -> TiersConfig:
    num_host_blocks, num_disk_blocks = rng.choice((40, 200)) // block_size, rng.choice((0, 400)) // block_size
    offload, prefetch = rng.choice(list(OffloadPolicy)), rng.choice((PrefetchPolicy.WAIT, PrefetchPolicy.BEST_EFFORT))
    return TiersConfig(num_host_blocks, num_disk_blocks, offload, prefetch, num_ahead_blocks=2)


def test_the_walks_find_blocks_that_are_free_too_early(
    walk: Callable[..., Walk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Holdings, "end_remote_write", end_remote_write_once)
    assert _finds_a_fault(walk, HastyDesk)


def test_the_walks_find_a_fence_that_is_none(walk: Callable[..., Walk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeAdmission, "fence", lambda _: True)
    assert _finds_a_fault(walk, DecodeDesk)


def test_the_walks_find_source_blocks_that_nobody_holds(
    walk: Callable[..., Walk], monkeypatch: pytest.MonkeyPatch
) -> None:
    def note_only(self: Holdings, sequence: Sequence, block_ids: list[int]) -> None:
        if sequence.reader is not None:
            self._read.setdefault(sequence.reader, []).extend(block_ids)

    monkeypatch.setattr(Holdings, "_note_read", note_only)
    monkeypatch.setattr(Holdings, "_read_instead", lambda *_: None)
    monkeypatch.setattr(Holdings, "_check_writers", lambda _: None)
    monkeypatch.setattr(Holdings, "end_read", lambda self, reader: self._read.pop(reader, None))
    assert _finds_a_fault(walk, DecodeDesk)


def test_the_walks_find_a_source_that_is_held_for_one_rank_alone(
    walk: Callable[..., Walk], monkeypatch: pytest.MonkeyPatch
) -> None:
    def release_for(self: PrefillDesk, rank: int, epoch: Epoch) -> None:
        if rank == 0:
            self._blocks.end_read(self._computing.pop(epoch).reader)

    monkeypatch.setattr(PrefillDesk, "_release_for", release_for)
    assert _finds_a_fault(walk, DecodeDesk, num_ranks=2)


def test_the_walks_find_a_line_that_is_clear_of_one_rank_alone(
    walk: Callable[..., Walk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode takes the first rank's word for all of them."""
    monkeypatch.setattr(Instance, "peers", property(lambda self: (self.ranks[0].peer,)))
    assert _finds_a_fault(walk, DecodeDesk, num_ranks=2)


def test_a_link_that_breaks_while_the_instance_computes_costs_no_life(walk: Callable[..., Walk]) -> None:
    world = walk(0).world
    prefill, desk = _connected(world)
    world.cut_link()
    for _ in range(30):  # a step of three seconds
        world.time += 0.1
        world.turn_decode()
    assert desk.statistics().num_peers == 0
    _turn_both(world)
    assert world.prefill is prefill
    assert desk.statistics().num_peers == 1


@pytest.mark.parametrize(("is_alive", "seconds"), [(False, 0.6), (True, 11.0)])
def test_who_does_not_come_back_is_fenced(
    walk: Callable[..., Walk], monkeypatch: pytest.MonkeyPatch, *, is_alive: bool, seconds: float
) -> None:
    """Soon if no connection is taken where it was; after a while if it never says hello."""
    monkeypatch.setattr(FakeAdmission, "fence", lambda _: True)
    world = walk(0).world
    prefill, desk = _connected(world)
    if is_alive:
        world.cut_link()
    else:
        world.kill_prefill()
    end = world.time + seconds
    while world.time < end:
        world.time += 0.1
        world.turn_decode()
    assert list(desk._instances._fenced) == [prefill.desk._sender.peer]


def _connected(world: HandoffWorld) -> tuple[PrefillSide, DecodeDesk]:
    _turn_both(world)
    assert world.prefill is not None
    assert world.decode_desk.statistics().num_peers == 1
    return world.prefill, world.decode_desk


def _turn_both(world: HandoffWorld) -> None:
    for _ in range(10):
        world.time += 0.1
        world.turn_decode()
        world.turn_prefill()


def _finds_a_fault(walk: Callable[..., Walk], desk: Callable[..., DecodeDesk], num_ranks: int = 1) -> bool:
    """Whether one of the walks reads what it should not, or ends wrong."""
    for seed in range(NUM_WALKS):
        try:
            walk(seed, desk, num_ranks=num_ranks).run()
        except AssertionError:
            return True
    return False
