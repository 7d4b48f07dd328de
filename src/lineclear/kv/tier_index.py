"""One tier below the device: which of its blocks hold which prefixes.

Unlike the prefix tree it may hold a block without the one before it: who comes from above leaves first, its prefix may
follow. Least recently used goes first, and of a prefix the last block: only the deepest entry of a use is stamped, and
an entry that goes hands its stamp to its parent.

Invariants:
    1. The index holds the block of each entry (kind TREE) and no other block; no two entries share one.
    2. An entry's block is complete before the entry exists.
    3. Each idle entry without children here is in the heap of candidates or among the pool's newly idle blocks.

Driven by `tiers`, which passes a logical clock. On disk a block is a file's place in the budget.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId
from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.prefix_key import PrefixKey, family_of

INDEX_HOLDER: Final = Holder(HolderKind.TREE, 0)


class Named(NamedTuple):
    """A prefix by its key, and the prefix one block shorter, as far as it is known: files do not say."""

    key: PrefixKey
    parent: PrefixKey | None


class _Entry:
    __slots__ = ("block_id", "is_candidate", "key", "last_used", "parent", "serial")

    def __init__(self, named: Named, block_id: BlockId, last_used: int, serial: int) -> None:
        self.key, self.parent = named
        self.block_id = block_id
        self.last_used = last_used
        self.serial = serial
        self.is_candidate = False


class TierIndex:
    """Finds, keeps and gives up the blocks of one tier."""

    def __init__(self, num_blocks: int) -> None:
        self.pool: Final = BlockPool(num_blocks)
        self._entries: dict[PrefixKey, _Entry] = {}
        self._by_block: dict[BlockId, _Entry] = {}
        self._num_children: dict[PrefixKey, int] = {}
        """Entries by their parent's key, whether that is here or not."""
        self._families: dict[bytes, dict[PrefixKey, None]] = {}
        self._candidates: list[tuple[int, int, _Entry]] = []
        self._num_added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: PrefixKey) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[PrefixKey]:
        return iter(self._entries)

    @property
    def num_available(self) -> int:
        """Blocks that are free or that eviction may free; an upper bound."""
        return self.pool.num_free + self.pool.num_idle

    def block_id(self, key: PrefixKey) -> BlockId | None:
        """Return where a prefix's last block is."""
        entry = self._entries.get(key)
        return None if entry is None else entry.block_id

    def parent(self, key: PrefixKey) -> PrefixKey | None:
        """Return the prefix one block shorter than one that is here, as far as it is known."""
        return self._entries[key].parent

    def names_of(self, block_ids: Iterable[BlockId]) -> list[Named]:
        """Return whose blocks these are, without those that were given up."""
        entries = [entry for block_id in block_ids if (entry := self._by_block.get(block_id)) is not None]
        return [Named(entry.key, entry.parent) for entry in entries]

    def add(self, named: Named, block_id: BlockId, now: int) -> None:
        """Take in a complete block that somebody holds.

        Owns: the index acquires a hold.
        Raises: InvariantError if the prefix is here already.
        """
        if named.key in self._entries:
            raise InvariantError("a prefix is added to a tier that has it")
        self.pool.acquire((block_id,), INDEX_HOLDER)
        self._num_added += 1
        entry = self._entries[named.key] = self._by_block[block_id] = _Entry(named, block_id, now, self._num_added)
        if entry.parent is not None:
            self._num_children[entry.parent] = self._num_children.get(entry.parent, 0) + 1
        self._families.setdefault(family_of(entry.key), {})[entry.key] = None

    def touch(self, key: PrefixKey, now: int) -> None:
        """Note the use of a prefix that is here."""
        self._entries[key].last_used = now

    def coldest(self) -> PrefixKey | None:
        """Return what eviction would give up next; None if everything is in use."""
        self._collect_candidates()
        while self._candidates:
            last_used, _, entry = self._candidates[0]
            if last_used == entry.last_used and self._is_evictable(entry):
                return entry.key
            heappop(self._candidates)
            entry.is_candidate = False
            self._offer(entry)
        return None

    def remove(self, key: PrefixKey) -> None:
        """Give up a prefix; its block is free once nobody else holds it."""
        entry = self._entries.pop(key)
        del self._by_block[entry.block_id]
        family = self._families[family_of(key)]
        del family[key]
        if not family:
            del self._families[family_of(key)]
        self.pool.release((entry.block_id,), INDEX_HOLDER)
        if entry.parent is not None:
            self._leave_parent(entry.parent, entry.last_used)

    def evict(self, num_blocks: int) -> list[PrefixKey]:
        """Give up the coldest prefixes until `num_blocks` blocks are free or none is left; return them."""
        evicted: list[PrefixKey] = []
        while self.pool.num_free < num_blocks and (key := self.coldest()) is not None:
            self.remove(key)
            evicted.append(key)
        return evicted

    def forget_family(self, family: bytes) -> list[PrefixKey]:
        """Give up all prefixes of a family, whoever reads them now; return them."""
        keys = list(self._families.get(family, ()))
        for key in keys:
            self.remove(key)
        return keys

    def check(self) -> None:
        """Count everything anew.

        Raises: InvariantError if an invariant does not hold. Cost: proportional to the tier.
        """
        self.pool.check()
        self._collect_candidates()
        num_children: dict[PrefixKey, int] = {}
        for entry in self._entries.values():
            _require(INDEX_HOLDER in self.pool.holders(entry.block_id), "an entry's block is not held")
            _require(self._by_block.get(entry.block_id) is entry, "two entries share a block")
            _require(entry.is_candidate or not self._is_evictable(entry), "an idle entry would never be evicted")
            if entry.parent is not None:
                num_children[entry.parent] = num_children.get(entry.parent, 0) + 1
        _require(num_children == self._num_children, "the count of children is wrong")
        _require(len(self._by_block) == len(self._entries), "a block is kept for an entry that is gone")
        num_holds = self.pool.statistics().holds_by_kind[HolderKind.TREE]
        _require(num_holds == len(self._entries), "a block is held for no entry")
        members = [key for family in self._families.values() for key in family]
        _require(sorted(members) == sorted(self._entries), "an entry is in no family")

    def _leave_parent(self, parent: PrefixKey, last_used: int) -> None:
        self._num_children[parent] -= 1
        if not self._num_children[parent]:
            del self._num_children[parent]
        entry = self._entries.get(parent)
        if entry is not None:
            entry.last_used = max(entry.last_used, last_used)
            self._offer(entry)

    def _collect_candidates(self) -> None:
        for block_id in self.pool.take_newly_idle():
            entry = self._by_block.get(block_id)
            if entry is not None:
                self._offer(entry)

    def _offer(self, entry: _Entry) -> None:
        if not entry.is_candidate and self._is_evictable(entry):
            entry.is_candidate = True
            heappush(self._candidates, (entry.last_used, entry.serial, entry))

    def _is_evictable(self, entry: _Entry) -> bool:
        is_here = self._entries.get(entry.key) is entry
        return is_here and entry.key not in self._num_children and self.pool.is_idle(entry.block_id)


def _require(ok: bool, broken: str) -> None:
    if not ok:
        raise InvariantError(f"tier index: {broken}")
