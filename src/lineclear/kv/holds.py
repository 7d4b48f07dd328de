"""Who held a block when: what a report of a fault names.

The pool tells every hold that begins or ends; the book keeps the last ones of each block, and of the allocation before
the present one its sequences and writers for as long as the present one lasts, however many holds come in between.

    allocated ──▶ taken, released, taken, … ──▶ freed ──▶ allocated: what it had becomes `previous`

Invariants:
    1. A block has at most `limit` events, the last ones, and at most `OWNERS` owners of each allocation.
    2. Ticks count events of the whole book, so events of two blocks can be put in order.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lineclear.base.ids import BlockId, SequenceId
from lineclear.kv.pool import Holder, HolderKind

HISTORY_LIMIT: Final = 32
"""Events of a block: a hold of a sequence or a pass is two, so the last dozen of holders."""
OWNERS: Final = 4
"""Sequences and writers of an allocation that are remembered: the last ones. A fault has one culprit, seldom two."""


class HoldEvent(NamedTuple):
    """One hold of one block that began or ended."""

    tick: int
    verb: str
    """allocated, taken, released or freed."""
    holder: Holder | None
    """None: freed by the end of the last hold."""


class HoldBook:
    """The holds of the blocks of one pool, in their order."""

    def __init__(self, limit: int = HISTORY_LIMIT) -> None:
        self._limit = limit
        self._tick = 0
        self._events: dict[BlockId, deque[HoldEvent]] = {}
        self._owners: dict[BlockId, list[Holder]] = {}
        self._previous: dict[BlockId, tuple[Holder, ...]] = {}
        self._sequence_of: dict[Holder, SequenceId] = {}
        self._allocations: dict[BlockId, int] = {}
        self._num_allocations = 0

    def allocated(self, block_ids: Sequence[BlockId], holder: Holder) -> None:
        """A holder got free blocks."""
        for number, block_id in enumerate(block_ids, self._num_allocations + 1):
            self._allocations[block_id] = number
            self._previous[block_id] = tuple(self._owners.get(block_id, ()))
            self._owners[block_id] = []
        self._num_allocations += len(block_ids)
        self._note(block_ids, "allocated", holder)

    def taken(self, block_ids: Iterable[BlockId], holder: Holder) -> None:
        """A holder joined others."""
        self._note(block_ids, "taken", holder)

    def released(self, block_ids: Iterable[BlockId], holder: Holder) -> None:
        """A holder let go."""
        self._tick += 1
        event = HoldEvent(self._tick, "released", holder)
        for block_id in block_ids:
            self._of(block_id).append(event)

    def freed(self, block_id: BlockId) -> None:
        """Nobody holds a block any more."""
        self._tick += 1
        self._of(block_id).append(HoldEvent(self._tick, "freed", None))

    def writes_for(self, writer: Holder, sequence_id: SequenceId) -> None:
        """A writer elsewhere writes what a sequence here lacks: reports name both."""
        if len(self._sequence_of) >= 4096:  # the oldest half: their blocks have had other writers since
            for old in list(self._sequence_of)[:2048]:
                del self._sequence_of[old]
        self._sequence_of[writer] = sequence_id

    def allocation(self, block_id: BlockId) -> int:
        """The number of a block's latest allocation, as the pool counts; 0 before the first."""
        return self._allocations.get(block_id, 0)

    def history(self, block_id: BlockId) -> tuple[HoldEvent, ...]:
        """The last events of a block, the oldest first."""
        return tuple(self._events.get(block_id, ()))

    def owners(self, block_id: BlockId) -> tuple[Holder, ...]:
        """The last sequences and writers of a block's present allocation, or of its last if it is free."""
        return tuple(self._owners.get(block_id, ()))

    def previous_owners(self, block_id: BlockId) -> tuple[Holder, ...]:
        """The same of the allocation before."""
        return self._previous.get(block_id, ())

    def named(self, holder: Holder) -> str:
        """A holder in words, with the sequence that a remote writer writes for."""
        sequence_id = self._sequence_of.get(holder)
        words = f"{holder.kind.name.lower()} {holder.id}"
        return words if sequence_id is None else f"{words} for sequence {sequence_id}"

    def described_history(self, block_id: BlockId) -> tuple[str, ...]:
        """The same in words."""
        return tuple(
            f"{event.tick} {event.verb}" + (f" by {self.named(event.holder)}" if event.holder is not None else "")
            for event in self.history(block_id)
        )

    def _note(self, block_ids: Iterable[BlockId], verb: str, holder: Holder) -> None:
        self._tick += 1
        event = HoldEvent(self._tick, verb, holder)
        is_owner = holder.kind is HolderKind.SEQUENCE or holder.kind is HolderKind.WRITER
        for block_id in block_ids:
            self._of(block_id).append(event)
            if is_owner:
                self._add_owner(block_id, holder)

    def _add_owner(self, block_id: BlockId, holder: Holder) -> None:
        owners = self._owners.setdefault(block_id, [])
        if holder in owners:
            owners.remove(holder)
        elif len(owners) == OWNERS:
            # Passes come by the dozen and say least: the sequences before them stay.
            passing = next((each for each in owners if each.kind is HolderKind.WRITER), owners[0])
            owners.remove(passing)
        owners.append(holder)

    def _of(self, block_id: BlockId) -> deque[HoldEvent]:
        events = self._events.get(block_id)
        if events is None:
            events = self._events[block_id] = deque(maxlen=self._limit)
        return events
