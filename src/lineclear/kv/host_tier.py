"""Host memory: what is there, and what is on its way there from the device or from disk.

| block                         | held by                          | until                            |
|-------------------------------|----------------------------------|----------------------------------|
| that a copy writes            | the copy, as a writer            | its end                          |
| of a prefix that is here      | the index                        | evicted                          |
| that a load or a write reads  | the copy, as a reader, as well   | its end, whatever becomes of it  |

Invariants:
    1. A prefix is here, arriving once, or neither.
    2. What is forgotten while it arrives does not come to be here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId
from lineclear.kv.copies import CopyId
from lineclear.kv.copy_book import writer_of
from lineclear.kv.prefix_key import PrefixKey, family_of
from lineclear.kv.tier_index import Named, TierIndex


@dataclass(slots=True)
class _Arrival:
    names: list[Named]
    block_ids: tuple[BlockId, ...]
    is_from_disk: bool


class HostTier:
    """The blocks of host memory."""

    def __init__(self, num_blocks: int) -> None:
        self.index: Final = TierIndex(num_blocks)
        self._arrivals: dict[CopyId, _Arrival] = {}
        self._arriving: dict[PrefixKey, CopyId] = {}
        self._from_disk: set[PrefixKey] = set()
        """Prefixes that came from disk and have not been used since."""

    def arrival_of(self, key: PrefixKey) -> CopyId | None:
        """Return the copy by which a prefix arrives."""
        return self._arriving.get(key)

    def is_known(self, key: PrefixKey) -> bool:
        """Whether a prefix is here or arrives."""
        return key in self.index or key in self._arriving

    def try_receive(self, copy_id: CopyId, names: Sequence[Named], *, is_from_disk: bool) -> tuple[BlockId, ...]:
        """Let prefixes that are not known arrive: as many, from the first on, as there is room for.

        Returns: their blocks, which the copy holds; none if there is no room at all, and then it is no copy.
        """
        num_wanted = min(len(names), self.index.num_available)
        self._evict(num_wanted)
        num_blocks = min(num_wanted, self.index.pool.num_free)
        block_ids = tuple(self.index.pool.try_allocate(num_blocks, writer_of(copy_id)) or ())
        if block_ids:
            taken = list(names[:num_blocks])
            self._arrivals[copy_id] = _Arrival(taken, block_ids, is_from_disk)
            for named in taken:
                if self.is_known(named.key):
                    raise InvariantError("a prefix comes to host memory twice")
                self._arriving[named.key] = copy_id
        return block_ids

    def end_arrival(self, copy_id: CopyId, num_done: int, now: int) -> list[Named]:
        """Take in the first blocks of a copy that has ended and let the others go; return what is here now."""
        arrival = self._arrivals.pop(copy_id)
        added: list[Named] = []
        for idx, (named, block_id) in enumerate(zip(arrival.names, arrival.block_ids, strict=True)):
            if self._arriving.get(named.key) != copy_id:
                continue  # forgotten
            del self._arriving[named.key]
            if idx < num_done:
                self.index.add(named, block_id, now)
                added.append(named)
                if arrival.is_from_disk:
                    self._from_disk.add(named.key)
        self.index.pool.release(arrival.block_ids, writer_of(copy_id))
        return added

    def take_origin(self, key: PrefixKey) -> bool:
        """Whether this is the first use of a prefix since it came from disk."""
        if key in self._from_disk:
            self._from_disk.remove(key)
            return True
        return False

    def give_up(self, key: PrefixKey) -> None:
        """Give up a prefix that is here."""
        self.index.remove(key)
        self._from_disk.discard(key)

    def forget_family(self, family: bytes) -> None:
        """Give up all prefixes of a family, those that arrive as well."""
        for key in self.index.forget_family(family):
            self._from_disk.discard(key)
        for key in [each for each in self._arriving if family_of(each) == family]:
            del self._arriving[key]

    def check(self) -> None:
        """Check the index, and that every writer's hold belongs to an arrival.

        Raises: InvariantError if not. Cost: proportional to the tier.
        """
        self.index.check()
        expected = {
            (block_id, writer_of(copy_id))
            for copy_id, each in self._arrivals.items()
            for block_id in each.block_ids
        }  # fmt: skip
        found = {
            (block_id, holder)
            for block_id, holders in self.index.pool.held_blocks()
            for holder in holders
            if holder.kind is holder.kind.WRITER
        }
        if expected != found:
            raise InvariantError("host tier: a block is written by nobody known, or its writer's hold is lost")
        if any(key in self.index for key in self._arriving):
            raise InvariantError("host tier: a prefix arrives and is here")
        if not all(key in self.index for key in self._from_disk):
            raise InvariantError("host tier: the origin of a prefix is known that is not here")

    def _evict(self, num_blocks: int) -> None:
        for key in self.index.evict(num_blocks):
            self._from_disk.discard(key)
