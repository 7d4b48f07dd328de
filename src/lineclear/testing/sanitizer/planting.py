"""Plants writes after reuse, as a late writer would: rows of blocks that are somebody else's, or nobody's, by now."""

import random
from dataclasses import dataclass, field

import torch

from lineclear.base.ids import BlockId
from lineclear.engine.engine import Engine
from lineclear.engine.readiness import AlwaysReady
from lineclear.engine.sanitizer import KvSanitizer
from lineclear.kv.kv_fault import KvFault
from lineclear.schedule.sequence import Sequence

PLANT_SHARE = 0.25
"""Of steps after which a row is written."""


@dataclass(frozen=True, slots=True)
class Plant:
    """One write."""

    block_id: BlockId
    allocation: int
    part: tuple[int, str]
    was_free: bool
    former: frozenset[str]
    """Who got the block at the allocation before this one, or if it is free at the last; nobody if that is long ago."""

    def is_told_by(self, fault: KvFault) -> bool:
        """Whether a fault is this write: the block, the part, and who had the block before."""
        number = fault.allocation
        # A free block that is given away meanwhile is told of with the number that it then has.
        is_same = number >= self.allocation if self.was_free else number == self.allocation
        is_blamed = not self.former or bool(self.former & {*fault.previous_owners})
        return (
            (fault.block_id, fault.tier) == (self.block_id, "device")
            and is_same
            and is_blamed
            and (self.part in fault.parts)
        )


@dataclass(slots=True)
class Planter:
    """Writes after some steps of a trial; at most one unfound write a block.

    Args:
        engine: with a sanitizer that looks at all blocks.
        seed: of what is written where and when.
    """

    engine: Engine
    sanitizer: KvSanitizer
    seed: int
    plants: list[Plant] = field(default_factory=list[Plant])
    found: list[KvFault] = field(default_factory=list[KvFault])
    _rng: random.Random = field(init=False)
    _planted: set[tuple[BlockId, int]] = field(default_factory=set[tuple[BlockId, int]])

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - no secret

    def __call__(self, sequences: list[Sequence]) -> None:  # noqa: ARG002 - what a trial calls
        """Write now and then."""
        self.take_found()
        if self._rng.random() < PLANT_SHARE:
            self._plant()

    def take_found(self) -> None:
        """Keep what was found since the last call."""
        self.found.extend(self.sanitizer.faults)
        self.sanitizer.faults.clear()

    @property
    def num_told(self) -> int:
        """Writes that a fault tells of, with their block, part and former owner."""
        return sum(any(plant.is_told_by(fault) for fault in self.found) for plant in self.plants)

    @property
    def num_blamed(self) -> int:
        """Writes whose former owner is known here, and so compared."""
        return sum(bool(plant.former) for plant in self.plants)

    def _plant(self) -> None:
        sealed, free = self.sanitizer.sealed_blocks(), self.sanitizer.poisoned_blocks()
        was_free = bool(free) and (not sealed or self._rng.random() < 0.3)
        block_ids = sorted(free if was_free else sealed)
        if not block_ids:
            return
        block_id = self._rng.choice(block_ids)
        allocation = self.sanitizer.book.allocation(block_id)
        if (block_id, allocation) in self._planted:
            return
        self._planted.add((block_id, allocation))
        layer, part = self._rng.choice(self.engine.store.parts)
        self.plants.append(
            Plant(block_id, allocation, (layer, part), was_free, self._former(block_id, was_free=was_free))
        )
        store = self.engine.store
        slot = torch.tensor([block_id * store.block_size + self._rng.randrange(store.block_size)])
        width = store.read(layer, part, AlwaysReady()).shape[1]
        store.write(layer, part, slot, torch.full((1, width), self._rng.random(), dtype=torch.float32))

    def _former(self, block_id: BlockId, *, was_free: bool) -> frozenset[str]:
        """Who got the block at the allocation before, by the raw record of holds, as far back as that goes."""
        allocated = [event.holder for event in self.sanitizer.book.history(block_id) if event.verb == "allocated"]
        first = allocated[-1:] if was_free else allocated[-2:-1]
        return frozenset(self.sanitizer.book.named(holder) for holder in first if holder is not None)
