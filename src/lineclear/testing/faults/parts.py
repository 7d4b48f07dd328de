"""The parts that lab workers have in place of the product's."""

import random
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from lineclear.base.ids import SequenceId, WorkerId
from lineclear.config.components import HandoffConfig
from lineclear.engine.copy_stream import Transfer
from lineclear.engine.passes import LocalPassMaking, Pass, Passes
from lineclear.engine.readiness import LoadReadiness, Readiness, WaitCounts
from lineclear.engine.store import KvStore
from lineclear.engine.tier_copies import PartSteps
from lineclear.model.batch import Part
from lineclear.model.glm import GlmModel
from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.schedule.plan import Plan
from lineclear.schedule.sequence import Sequence as EngineSequence
from lineclear.worker.decode_desk import DecodeDesk

Fire = Callable[[], None]

FLIP_SHARE = 0.02
"""Of passes in which a bit is flipped."""


class HastyDecodeDesk(DecodeDesk):
    """Takes news for proof: the blocks of a failed attempt are free at once, whoever may still write into them."""

    def __init__(self, fire: Fire, worker_id: WorkerId, life: int, config: HandoffConfig) -> None:
        super().__init__(worker_id, life, config)
        self._fire = fire
        self._given_up: set[tuple[Epoch, Peer]] = set()

    def _perform(self, attempt: Any, effect: rx.ReceiverEffect) -> None:  # noqa: ANN401 - the desk's own record
        if isinstance(effect, rx.ReleaseWriter) and (effect.epoch, effect.peer) in self._given_up:
            self._given_up.remove((effect.epoch, effect.peer))  # the proof has nothing left to end
            return
        super()._perform(attempt, effect)
        if isinstance(effect, rx.Failed):
            for peer in attempt.receiver.unproven:
                super()._perform(attempt, rx.ReleaseWriter(effect.epoch, peer))
                self._given_up.add((effect.epoch, peer))
                self._fire()


class UnwaitedPart(LoadReadiness):
    """Does not wait for one part; fires where it would have had to."""

    def __init__(
        self, part: Part, fire: Fire, transfers: Sequence[Transfer], step_idxs: PartSteps, counts: WaitCounts
    ) -> None:
        super().__init__(transfers, step_idxs, counts)
        self._part: Part = part
        self._fire = fire
        self._all = tuple(transfers)
        self._steps = step_idxs

    def wait(self, layer: int, part: Part) -> None:
        """Wait for the other parts alone."""
        if part != self._part:
            super().wait(layer, part)
        elif not all(transfer.is_visible(self._steps[layer, part]) for transfer in self._all):
            self._fire()


class SlowStep:
    """Takes its time before each step of a copy, and fires each time that it does."""

    def __init__(self, seed: int, longest_seconds: float, fire: Fire) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._lock = threading.Lock()
        self._longest_seconds = longest_seconds
        self._fire = fire
        self._wake = threading.Event()

    def __call__(self) -> None:
        """Wait."""
        with self._lock:
            seconds = self._random.choice((0.0, 1.0, 1.0)) * self._random.random() * self._longest_seconds
        if seconds:
            self._fire()
            self._wake.wait(seconds)


class FlippingPassMaking(LocalPassMaking):
    """Passes before some of which one bit of a block that they read is flipped."""

    def __init__(self, seed: int, fire: Fire) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._fire = fire

    def make(self, model: GlmModel, store: KvStore, max_model_len: int) -> Passes:
        """Passes of one process, and the flips."""
        return _FlippingPasses(super().make(model, store, max_model_len), store, self._random, self._fire)


class _FlippingPasses:
    def __init__(self, passes: Passes, store: KvStore, dice: random.Random, fire: Fire) -> None:
        self._passes = passes
        self._store = store
        self._random = dice
        self._fire = fire

    def open(
        self, plan: Plan, sequences: Mapping[SequenceId, EngineSequence], readiness: Readiness
    ) -> AbstractContextManager[Pass]:
        return self._open(plan, sequences, readiness)

    @contextmanager
    def _open(
        self, plan: Plan, sequences: Mapping[SequenceId, EngineSequence], readiness: Readiness
    ) -> Generator[Pass]:
        read = [chunk for chunk in plan.chunks if chunk.start >= self._store.block_size]
        if read and self._random.random() < FLIP_SHARE:
            chunk = self._random.choice(read)
            position = self._random.randrange(chunk.start)
            table = sequences[chunk.sequence_id].block_table
            offset = position % self._store.block_size
            self._flip(table[position // self._store.block_size] * self._store.block_size + offset, readiness)
        with self._passes.open(plan, sequences, readiness) as current:
            yield current

    def _flip(self, slot: int, readiness: Readiness) -> None:
        layer, part = self._random.choice(self._store.parts)
        row = self._store.read(layer, part, readiness)[slot].clone()
        bits = row.view(torch.uint8)
        bits[self._random.randrange(len(bits))] ^= 1 << self._random.randrange(8)
        self._store.write(layer, part, torch.tensor([slot], device=row.device), row[None])
        self._fire()
