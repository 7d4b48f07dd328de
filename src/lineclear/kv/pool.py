"""The blocks of one tier and who holds them.

States of a block, and what moves it:

    free ──allocate──▶ held ──last hold ends──▶ free
                        │                        ▲
                        └─ …if marked ─▶ quarantined ──release_quarantine

Invariants:
    1. free + held + quarantined = total, at all times.
    2. A block is held exactly when somebody holds it; nobody holds it twice.
    3. Nobody gets a free block but through try_allocate, which gives each allocation of a block a number of its own.
    4. A marked block never becomes free without release_quarantine.

The holds of a sequence and of a writer are separate, so ending the sequence never ends its writer. Free blocks are
reused in the order in which they became free: as late as possible, which gives a fault of reuse time to be seen.

Driven by the scheduler and the prefix tree. The pool tells the tree which blocks nobody else keeps (they are idle): the
tree asks, nothing calls upwards.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId, SequenceId


class HolderKind(IntEnum):
    """Why a block is kept."""

    SEQUENCE = 0
    """A sequence reads it."""
    TREE = 1
    """The prefix tree keeps it for sequences to come."""
    WRITER = 2
    """A forward pass, a load or a remote rank may still write into it."""
    READER = 3
    """An offload or a remote process reads it."""


class Holder(NamedTuple):
    """One that holds blocks. A tuple with an integer kind, because hashing it is on the hot path."""

    kind: HolderKind
    id: int


class PoolWatch(Protocol):
    """Hears of every hold, when it begins and when it ends; it may look at the blocks and changes nothing here."""

    def allocated(self, block_ids: Sequence[BlockId], holder: Holder) -> None:
        """A holder got free blocks."""
        ...

    def taken(self, block_ids: Sequence[BlockId], holder: Holder) -> None:
        """A holder joined others."""
        ...

    def released(self, block_ids: Sequence[BlockId], holder: Holder) -> None:
        """A holder let go. Order: before `freed` of those that nobody else holds."""
        ...

    def freed(self, block_id: BlockId) -> None:
        """A block is free: nobody holds it, nobody may write into it."""
        ...

    def writes_for(self, writer: Holder, sequence_id: SequenceId) -> None:
        """A remote writer writes what a sequence lacks."""
        ...


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool's state: three numbers of blocks that sum to the fourth, and the number of holds of each kind."""

    total: int
    free: int
    held: int
    quarantined: int
    idle: int
    """Held by the tree alone: free as soon as the tree gives them up."""
    holds_by_kind: Mapping[HolderKind, int]


class BlockPool:
    """Hands out blocks and counts holds by holder.

    Args:
        watch: hears of every hold; None: nobody does.
    """

    def __init__(self, num_blocks: int, watch: PoolWatch | None = None) -> None:
        if num_blocks < 1:
            raise InvariantError(f"num_blocks: got {num_blocks}, allowed: at least 1")
        self.num_blocks: Final = num_blocks
        self._watch: Final = watch
        self._free = deque(BlockId(index) for index in range(num_blocks))
        self._holders: list[dict[Holder, None]] = [{} for _ in range(num_blocks)]
        self._tree_held = bytearray(num_blocks)
        self._allocations = [0] * num_blocks
        self._num_allocations = 0
        self._num_holds = [0] * len(HolderKind)
        self._num_idle = 0
        self._newly_idle: dict[BlockId, None] = {}
        self._marked: set[BlockId] = set()
        self._quarantined: set[BlockId] = set()

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds and anybody may get."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Blocks that only the tree holds."""
        return self._num_idle

    @property
    def num_usable(self) -> int:
        """Blocks that are not in quarantine."""
        return self.num_blocks - len(self._quarantined)

    def try_allocate(self, count: int, holder: Holder) -> list[BlockId] | None:
        """Take `count` free blocks for a holder, all or none.

        Order: those that have been free for longest, by their number: neighbours among them are moved as one run,
            whatever order they became free in. Eviction frees a prefix from its end.
        Returns: None if fewer are free.
        """
        free = self._free
        if count > len(free):
            return None
        block_ids = sorted(free.popleft() for _ in range(count))
        is_tree = holder.kind is HolderKind.TREE
        for number, block_id in enumerate(block_ids, self._num_allocations + 1):
            self._allocations[block_id] = number
            self._holders[block_id][holder] = None
            if is_tree:
                self._tree_held[block_id] = 1
                self._become_idle(block_id)
        self._num_allocations += count
        self._num_holds[holder.kind] += count
        if self._watch is not None and block_ids:
            self._watch.allocated(block_ids, holder)
        return block_ids

    def acquire(self, block_ids: Iterable[BlockId], holder: Holder) -> None:
        """Add a holder to held blocks.

        Raises: InvariantError if a block is held by nobody, or by this holder already.
        """
        all_holders, tree_held = self._holders, self._tree_held
        is_tree = holder.kind is HolderKind.TREE
        num_acquired = 0
        if self._watch is not None:
            block_ids = tuple(block_ids)
        for block_id in block_ids:
            holders = all_holders[block_id]
            if not holders or holder in holders:
                raise InvariantError(f"acquire: {_named(holder)} asks for {self._described(block_id)}")
            if is_tree:
                tree_held[block_id] = 1
            elif tree_held[block_id] and len(holders) == 1:
                self._num_idle -= 1
            holders[holder] = None
            num_acquired += 1
        self._num_holds[holder.kind] += num_acquired
        if self._watch is not None:
            self._watch.taken(tuple(block_ids), holder)

    def release(self, block_ids: Iterable[BlockId], holder: Holder) -> None:
        """End a holder's holds; what nobody holds any more becomes free, in the order given.

        Raises: InvariantError if the holder does not hold a block.
        """
        all_holders, tree_held = self._holders, self._tree_held
        is_tree = holder.kind is HolderKind.TREE
        num_released = 0
        if self._watch is not None:
            block_ids = tuple(block_ids)
            self._watch.released(block_ids, holder)
        for block_id in block_ids:
            holders = all_holders[block_id]
            if holder not in holders:
                raise InvariantError(f"release: {_named(holder)} does not hold {self._described(block_id)}")
            del holders[holder]
            num_released += 1
            if is_tree:
                tree_held[block_id] = 0
                self._num_idle -= not holders
            elif tree_held[block_id] and len(holders) == 1:
                self._become_idle(block_id)
            if not holders:
                self._retire(block_id)
        self._num_holds[holder.kind] -= num_released

    def holders(self, block_id: BlockId) -> tuple[Holder, ...]:
        """Return who holds a block, in the order in which they took it."""
        return tuple(self._holders[block_id])

    def is_idle(self, block_id: BlockId) -> bool:
        """Whether the tree alone holds a block."""
        return self._tree_held[block_id] == 1 and len(self._holders[block_id]) == 1

    def allocation(self, block_id: BlockId) -> int:
        """Return the number of a block's latest allocation: unique in this pool; 0 before the first."""
        return self._allocations[block_id]

    def take_newly_idle(self) -> list[BlockId]:
        """Return, once, the blocks that became idle since the last call; some may have been acquired again since."""
        block_ids = list(self._newly_idle)
        self._newly_idle.clear()
        return block_ids

    def quarantine(self, block_ids: Iterable[BlockId]) -> None:
        """Mark held blocks: when their last hold ends they are not free but in quarantine.

        Raises: InvariantError if nobody holds a block.
        """
        for block_id in block_ids:
            if not self._holders[block_id]:
                raise InvariantError(f"quarantine: {self._described(block_id)}")
            self._marked.add(block_id)

    def release_quarantine(self, block_ids: Iterable[BlockId]) -> None:
        """Let blocks go free again: no writer can reach them, which the caller has proof of.

        Raises: InvariantError if a block is neither marked nor in quarantine.
        """
        for block_id in block_ids:
            if block_id in self._quarantined:
                self._quarantined.remove(block_id)
                self._free_up(block_id)
            elif block_id in self._marked:
                self._marked.remove(block_id)
            else:
                raise InvariantError(f"release_quarantine: {self._described(block_id)}")

    def held_blocks(self) -> Iterator[tuple[BlockId, tuple[Holder, ...]]]:
        """Yield each held block with its holders. Cost: proportional to the pool."""
        for index, holders in enumerate(self._holders):
            if holders:
                yield BlockId(index), tuple(holders)

    def statistics(self) -> PoolStatistics:
        """Return the pool's state."""
        return PoolStatistics(
            total=self.num_blocks,
            free=len(self._free),
            held=self.num_blocks - len(self._free) - len(self._quarantined),
            quarantined=len(self._quarantined),
            idle=self._num_idle,
            holds_by_kind={kind: self._num_holds[kind] for kind in HolderKind},
        )

    def check(self) -> None:
        """Count everything anew.

        Raises: InvariantError if an invariant does not hold. Cost: proportional to the pool.
        """
        free, held = set(self._free), {block_id for block_id, _ in self.held_blocks()}
        _require(len(free) == len(self._free), "a block is free twice")
        _require(not free & held, "a block is free and held")
        _require(not self._quarantined & (free | held), "a block in quarantine is free or held")
        _require(len(free) + len(held) + len(self._quarantined) == self.num_blocks, "a block is lost")
        _require(self._marked <= held, "a block is marked for quarantine and held by nobody")
        num_holds = [0] * len(HolderKind)
        for _, holders in self.held_blocks():
            for holder in holders:
                num_holds[holder.kind] += 1
        _require(num_holds == self._num_holds, "the count of holds is wrong")
        by_tree = {block for block, holders in self.held_blocks() if any(h.kind is HolderKind.TREE for h in holders)}
        _require(
            by_tree == {i for i, flag in enumerate(self._tree_held) if flag}, "the record of the tree's holds is wrong"
        )
        num_idle = sum(len(self._holders[block_id]) == 1 for block_id in by_tree)
        _require(num_idle == self._num_idle, "the count of idle blocks is wrong")

    def _become_idle(self, block_id: BlockId) -> None:
        self._num_idle += 1
        self._newly_idle[block_id] = None

    def note_writer(self, writer: Holder, sequence_id: SequenceId) -> None:
        """A remote writer writes what a sequence lacks: for reports alone."""
        if self._watch is not None:
            self._watch.writes_for(writer, sequence_id)

    def _retire(self, block_id: BlockId) -> None:
        if block_id in self._marked:
            self._marked.remove(block_id)
            self._quarantined.add(block_id)
        else:
            self._free_up(block_id)

    def _free_up(self, block_id: BlockId) -> None:
        self._free.append(block_id)
        if self._watch is not None:
            self._watch.freed(block_id)

    def _described(self, block_id: BlockId) -> str:
        owners = ", ".join(_named(holder) for holder in self._holders[block_id]) or "nobody"
        return f"block {block_id} (allocation {self._allocations[block_id]}, held by {owners})"


def _named(holder: Holder) -> str:
    return f"{holder.kind.name.lower()} {holder.id}"


def _require(ok: bool, broken: str) -> None:
    if not ok:
        raise InvariantError(f"block pool: {broken}")
