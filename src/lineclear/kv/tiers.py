"""Device, host and disk behind one prefix tree: what is where, what moves, and who holds what meanwhile.

    device    prefix tree, block pool
      │ ▲     Offload: on insertion, on reuse, or before eviction (OffloadPolicy). Load: on a hit
      ▼ │
    host      HostTier
      │ ▲     DiskWrite: likewise. DiskRead: prefetch of a queued request
      ▼ │
    disk      DiskTier

Each prefix has a name that all tiers share (`prefix_key`). A match takes what the tree has, then what the host has from
there on; what only the disk has comes to the host first. Everything here is decided in the order of the calls, from
what the calls say: ranks of an instance that make the same calls decide alike, and execute the same copies.

Holds, beside those of the tree and of sequences:

| copy     | source blocks, held as a reader | destination blocks, held as a writer            | until   |
|----------|---------------------------------|-------------------------------------------------|---------|
| Load     | host                            | device, beside the sequence that is to use them | its end |
| Offload  | device                          | host                                            | its end |
| DiskRead | disk                            | host                                            | its end |
| DiskWrite| host                            | disk                                            | its end |

Invariants:
    1. free + held + quarantined = total, on every tier.
    2. The end of a request ends no copy's hold, and the end of a copy ends nothing but its holds.
    3. A block is in the index of a tier only when it is complete there, all parts; so nothing is found half copied.
    4. A prefix is on its way down once at most, and what is forgotten on its way does not arrive.

Driven by the scheduler, which passes a logical clock; the engine executes `take_copies` and reports each end.
"""

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId, SequenceId
from lineclear.kv.copies import Copy, CopyEnd, CopyFailure, CopyId, Load, Offload
from lineclear.kv.copy_book import CopyBook, reader_of, writer_of
from lineclear.kv.disk_tier import READ_BATCH, DiskTier
from lineclear.kv.host_tier import HostTier
from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.pool import BlockPool, Holder, PoolStatistics
from lineclear.kv.prefetches import Prefetches
from lineclear.kv.prefix_key import PrefixKey, family_of
from lineclear.kv.radix import PrefixNode, RadixTree
from lineclear.kv.tier_index import Named

OFFLOAD_BATCH: Final = 128
"""Blocks of one offload: its end lets go of its blocks."""

_AHEAD_SHARE: Final = 8
"""Of a tier that writes back, at most one block in so many is kept free ahead of need."""


@dataclass(frozen=True, slots=True)
class TiersConfig:
    """How large the tiers are and when blocks move."""

    num_host_blocks: int
    num_disk_blocks: int
    """0: no disk."""
    offload: OffloadPolicy
    prefetch: PrefetchPolicy
    num_ahead_blocks: int
    """What one step may take: a tier that writes back keeps as much free ahead of need."""


@dataclass(frozen=True, slots=True)
class HostHit:
    """What the host has of a prompt beyond its prefix on the device: the plan of a load, before it has blocks."""

    keys: tuple[PrefixKey, ...]
    host_block_ids: tuple[BlockId, ...]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class TiersStatistics:
    """Blocks of the tiers below the device now, and totals since the start."""

    host: PoolStatistics
    disk: PoolStatistics | None
    num_loading_blocks: int
    """Of the device, under a load."""
    num_offloading_blocks: int
    """Of the device, under an offload."""
    num_prefetches: int
    """Queued sequences that wait for the disk."""
    host_hit_tokens: int
    """Prompt tokens loaded from host memory; those that had come from disk for it are the next."""
    disk_hit_tokens: int
    num_loaded_blocks: int
    num_offloaded_blocks: int
    num_read_blocks: int
    """From disk."""
    num_written_blocks: int
    """To disk."""
    num_dropped_blocks: int
    """Given up by a device that writes back, while the host had no room."""
    failures: dict[CopyFailure, int]


@dataclass(slots=True)
class _Totals:
    host_hit_blocks: int = 0
    disk_hit_blocks: int = 0
    num_loaded: int = 0
    num_offloaded: int = 0
    num_read: int = 0
    num_written: int = 0
    num_dropped: int = 0


class Tiers:
    """The tiers of one worker.

    Args:
        pool, tree: of the device.
    """

    def __init__(self, config: TiersConfig, pool: BlockPool, tree: RadixTree) -> None:
        self.config: Final = config
        self._pool = pool
        self._tree = tree
        self._book = CopyBook()
        self._host = HostTier(config.num_host_blocks)
        host_pool = self._host.index.pool
        self._disk = DiskTier(config.num_disk_blocks, host_pool, self._book) if config.num_disk_blocks else None
        self._prefetches = Prefetches(self._book)
        self._loads: dict[CopyId, Load] = {}
        self._offloads: dict[CopyId, Offload] = {}
        self._totals = _Totals()
        self._now = 0

    def find(self, prefix: PrefixNode, tokens: "array[int]") -> HostHit:
        """Find what the host has of `tokens` beyond their longest prefix on the device.

        Cost: a digest for each block that is there.
        """
        keys: list[PrefixKey] = []
        host_block_ids: list[BlockId] = []
        block_id_of = self._host.index.block_id
        for key in self._tree.prefix_keys_after(prefix, tokens):
            block_id = block_id_of(key)
            if block_id is None:
                break
            keys.append(key)
            host_block_ids.append(block_id)
        return HostHit(tuple(keys), tuple(host_block_ids))

    def begin_load(self, hit: HostHit, device_block_ids: Sequence[BlockId], *, counts: bool) -> CopyId:
        """Begin to load a hit into blocks that a sequence has just got; `counts` is true of a prompt's first use.

        Order: nothing has moved since the hit was found.
        """
        copy_id = self._book.next_id()
        self._pool.acquire(device_block_ids, writer_of(copy_id))
        self._host.index.pool.acquire(hit.host_block_ids, reader_of(copy_id))
        load = self._loads[copy_id] = Load(copy_id, hit.host_block_ids, tuple(device_block_ids))
        self._book.start(load)
        self._host.index.touch(hit.keys[-1], self._now)
        for is_from_disk in [self._host.take_origin(key) for key in hit.keys]:
            self._totals.disk_hit_blocks += counts and is_from_disk
            self._totals.host_hit_blocks += counts and not is_from_disk
        return copy_id

    def note_used(self, prefix: PrefixNode, now: int) -> None:
        """A sequence has found a prefix on the device: it is used below as well, and may go down for it."""
        self._now = now
        node = prefix
        while node.parent is not None and self._key(node) not in self._host.index:
            node = node.parent
        if node.parent is not None:
            self._host.index.touch(self._key(node), now)
        if self.config.offload is not OffloadPolicy.WRITE_BACK:
            self._offload_path(prefix, self._tree.root)

    def note_inserted(self, start: PrefixNode, end: PrefixNode, now: int) -> None:
        """The blocks between two prefixes are complete on the device."""
        self._now = now
        if self.config.offload is OffloadPolicy.WRITE_THROUGH:
            self._offload_path(end, start)

    def make_room(self, num_blocks: int) -> None:
        """Give up the coldest blocks of the device, until so many are free, or will be when offloads have ended."""
        if self.config.offload is OffloadPolicy.WRITE_BACK:
            self._write_back_device(num_blocks)
        else:
            self._tree.evict(num_blocks - self._pool.num_free)

    def write_back(self, now: int) -> None:
        """Copy down what is about to be given up: enough for a step to find free blocks."""
        self._now = now
        if self.config.offload is OffloadPolicy.WRITE_BACK:
            self._write_back_host()
            self._write_back_device(min(self.config.num_ahead_blocks, self._pool.num_blocks // _AHEAD_SHARE))

    def forget(self, prefix: PrefixNode) -> None:
        """Give up, below the device, everything whose first block is a prefix's: it is suspect."""
        if prefix.parent is None:
            return
        family = family_of(self._key(prefix))
        self._host.forget_family(family)
        if self._disk is not None:
            self._disk.forget_family(family)

    def forget_host_blocks(self, host_block_ids: Collection[BlockId]) -> None:
        """Give up, below the device, every family of prefixes that one of these host blocks belongs to."""
        for named in self._host.index.names_of(host_block_ids):
            family = family_of(named.key)
            self._host.forget_family(family)
            if self._disk is not None:
                self._disk.forget_family(family)

    def forget_tokens(self, tokens: "array[int]") -> None:
        """Give up, below the device, everything whose first block is that of `tokens`, whether the device has it."""
        for key in self._tree.prefix_keys_after(self._tree.root, tokens):
            family = family_of(key)
            self._host.forget_family(family)
            if self._disk is not None:
                self._disk.forget_family(family)
            return

    def begin_prefetch(self, sequence_id: SequenceId, prefix: PrefixNode, tokens: "array[int]") -> None:
        """Begin to bring to the host what only the disk has of a prompt that is queued.

        What the host has of it counts as used by the next step, so that what comes from disk does not take its place.
        """
        if self._disk is None:
            return
        parent = self._tree.prefix_key(prefix)
        lacking: list[Named] = []
        arrivals: set[CopyId] = set()
        for key in self._tree.prefix_keys_after(prefix, tokens):
            arrival = self._host.arrival_of(key)
            if arrival is not None:
                arrivals.add(arrival)
            elif key in self._host.index:
                self._host.index.touch(key, self._now + 1)
            else:
                lacking.append(Named(key, parent))
            parent = key
        self._prefetches.begin(sequence_id, lacking, arrivals)

    def is_waiting(self, sequence_id: SequenceId) -> bool:
        """Whether a queued sequence is to wait for the disk."""
        return self.config.prefetch is not PrefetchPolicy.BEST_EFFORT and self._prefetches.is_open(sequence_id)

    def cancel_prefetch(self, sequence_id: SequenceId) -> None:
        """A sequence waits for the disk no more."""
        self._prefetches.cancel(sequence_id)

    def note_on_disk(self, keys: Iterable[PrefixKey], now: int) -> None:
        """Files were found at the start, the oldest first."""
        self._now = now
        if self._disk is not None:
            for key in keys:
                self._disk.note(Named(key, None), now)

    def take_copies(self) -> list[Copy]:
        """Return, once, what is to be copied, in order."""
        return self._book.take()

    def end(self, end: CopyEnd) -> None:
        """A copy has ended: nothing of it touches its blocks any more."""
        copy_id = end.copy_id
        if end.failure is not None:
            self._book.failures[end.failure] += 1
        if copy_id in self._loads:
            self._end_load(end)
        elif copy_id in self._offloads:
            self._end_offload(end)
        elif self._disk is None:
            raise InvariantError(f"copy {copy_id} ends twice")
        elif self._prefetches.ends_find(copy_id):
            self._end_find(end)
        elif self._disk.ends_read(copy_id):
            self._disk.end_read(end)
            self._totals.num_read += len(self._host.end_arrival(copy_id, end.num_done, self._now))
        elif self._disk.ends_write(copy_id):
            self._disk.end_write(end, self._now)
            self._totals.num_written += end.num_done
        else:
            raise InvariantError(f"copy {copy_id} ends twice")
        self._prefetches.end(copy_id)

    def device_writers(self) -> dict[Holder, tuple[BlockId, ...]]:
        """The loads that hold blocks of the device."""
        return {writer_of(copy_id): load.device_block_ids for copy_id, load in self._loads.items()}

    def device_readers(self) -> dict[Holder, tuple[BlockId, ...]]:
        """The offloads that hold blocks of the device."""
        return {reader_of(copy_id): each.device_block_ids for copy_id, each in self._offloads.items()}

    @property
    def is_settled(self) -> bool:
        """Whether no copy between device and host is under way: blocks of the device are held by others alone."""
        return not self._loads and not self._offloads

    def statistics(self) -> TiersStatistics:
        """Return the state of the lower tiers, and totals."""
        totals, block_size = self._totals, self._tree.block_size
        return TiersStatistics(
            host=self._host.index.pool.statistics(),
            disk=None if self._disk is None else self._disk.index.pool.statistics(),
            num_loading_blocks=sum(len(each.device_block_ids) for each in self._loads.values()),
            num_offloading_blocks=sum(len(each.device_block_ids) for each in self._offloads.values()),
            num_prefetches=len(self._prefetches),
            host_hit_tokens=totals.host_hit_blocks * block_size,
            disk_hit_tokens=totals.disk_hit_blocks * block_size,
            num_loaded_blocks=totals.num_loaded,
            num_offloaded_blocks=totals.num_offloaded,
            num_read_blocks=totals.num_read,
            num_written_blocks=totals.num_written,
            num_dropped_blocks=totals.num_dropped,
            failures=dict(self._book.failures),
        )

    def check(self) -> None:
        """Check both lower tiers and that every copy's holds are there.

        Raises: InvariantError if not. Cost: proportional to the tiers.
        """
        self._host.check()
        if self._disk is not None:
            self._disk.check()
        for holders in (self.device_writers(), self.device_readers()):
            for holder, block_ids in holders.items():
                for block_id in block_ids:
                    if holder not in self._pool.holders(block_id):
                        raise InvariantError(f"tiers: block {block_id} is copied and not held for it")

    def _key(self, node: PrefixNode) -> PrefixKey:
        key = self._tree.prefix_key(node)
        if key is None:
            raise InvariantError("the empty prefix is in no tier")
        return key

    def _named(self, node: PrefixNode) -> Named:
        parent = node.parent
        return Named(self._key(node), None if parent is None else self._tree.prefix_key(parent))

    def _offload_path(self, end: PrefixNode, start: PrefixNode) -> None:
        """Offload what the host lacks of the blocks between two prefixes, first to last, as far as it has room."""
        lacking: list[PrefixNode] = []
        while end is not start and end.parent is not None:
            if not self._host.is_known(self._key(end)):
                lacking.append(end)
            end = end.parent
        lacking.reverse()
        for first in range(0, len(lacking), OFFLOAD_BATCH):
            self._offload(self._book.next_id(), lacking[first : first + OFFLOAD_BATCH])

    def _offload(self, copy_id: CopyId, nodes: Sequence[PrefixNode]) -> int:
        """Begin to offload the first so many blocks as there is room for; return how many."""
        host_block_ids = self._host.try_receive(copy_id, [self._named(node) for node in nodes], is_from_disk=False)
        if host_block_ids:
            offload = Offload(copy_id, _blocks(nodes[: len(host_block_ids)]), host_block_ids)
            self._hold_source(offload)
            self._offloads[copy_id] = offload
            self._book.start(offload)
        return len(host_block_ids)

    def _hold_source(self, offload: Offload) -> None:
        self._pool.acquire(offload.device_block_ids, reader_of(offload.copy_id))

    def _release_source(self, offload: Offload) -> None:
        self._pool.release(offload.device_block_ids, reader_of(offload.copy_id))

    def _write_back_device(self, num_wanted: int) -> None:
        """Let the coldest blocks leave the tree; who has no copy below is held by its offload until it has."""
        num_leaving = sum(len(each.device_block_ids) for each in self._offloads.values())
        passage = reader_of(self._book.next_id())
        leaving: list[PrefixNode] = []
        while self._pool.num_free + num_leaving + len(leaving) < num_wanted:
            node = self._tree.coldest()
            if node is None:
                break
            if not self._host.is_known(self._key(node)):
                leaving.append(node)
                self._pool.acquire(_blocks((node,)), passage)
            self._tree.remove(node)
        leaving.reverse()  # what is nearer to the root is of use to more
        num_begun = self._offload(self._book.next_id(), leaving) if leaving else 0
        self._pool.release(_blocks(leaving), passage)
        self._totals.num_dropped += len(leaving) - num_begun

    def _write_back_host(self) -> None:
        """Let the coldest blocks leave host memory; who has no file is held by its write until it has."""
        if self._disk is None:
            return
        index = self._host.index
        num_wanted = min(self.config.num_ahead_blocks, index.pool.num_blocks // _AHEAD_SHARE)
        passage = reader_of(self._book.next_id())
        leaving: list[Named] = []
        block_ids: list[BlockId] = []
        while index.pool.num_free + self._disk.num_writing + len(leaving) < num_wanted:
            key = index.coldest()
            block_id = None if key is None else index.block_id(key)
            if key is None or block_id is None:
                break
            if not self._disk.is_known(key):
                leaving.append(Named(key, index.parent(key)))
                block_ids.append(block_id)
                index.pool.acquire((block_id,), passage)
            self._host.give_up(key)
        self._disk.write(leaving, block_ids)
        index.pool.release(block_ids, passage)

    def _end_load(self, end: CopyEnd) -> None:
        load = self._loads.pop(end.copy_id)
        self._pool.release(load.device_block_ids, writer_of(end.copy_id))
        self._totals.num_loaded += end.num_done
        if self.config.offload is OffloadPolicy.WRITE_THROUGH_SELECTIVE:
            self._write_to_disk(self._host.index.names_of(load.host_block_ids))
        self._host.index.pool.release(load.host_block_ids, reader_of(end.copy_id))

    def _end_offload(self, end: CopyEnd) -> None:
        self._release_source(self._offloads.pop(end.copy_id))
        self._totals.num_offloaded += end.num_done
        added = self._host.end_arrival(end.copy_id, end.num_done, self._now)
        if self.config.offload is OffloadPolicy.WRITE_THROUGH:
            self._write_to_disk(added)

    def _write_to_disk(self, names: Sequence[Named]) -> None:
        if self._disk is not None:
            index = self._host.index
            here = [(named, block_id) for named in names if (block_id := index.block_id(named.key)) is not None]
            self._disk.write([named for named, _ in here], [block_id for _, block_id in here])

    def _end_find(self, end: CopyEnd) -> None:
        """Read what was found and is not in host memory, as far as that has room, if it is still waited for."""
        sequence_id, found = self._prefetches.take_found(end.copy_id, end.num_done)
        if self._disk is None or not self._prefetches.is_open(sequence_id):
            return
        lacking: list[Named] = []
        for named in found:
            arrival = self._host.arrival_of(named.key)
            if arrival is not None:
                self._prefetches.wait(sequence_id, (arrival,))
            elif named.key not in self._host.index:
                self._disk.note(named, self._now)
                lacking.append(named)
        for first in range(0, len(lacking), READ_BATCH):
            batch = [each for each in lacking[first : first + READ_BATCH] if each.key in self._disk.index]
            copy_id = self._book.next_id()
            host_block_ids = self._host.try_receive(copy_id, batch, is_from_disk=True)
            if not host_block_ids:
                return
            self._prefetches.wait(sequence_id, (copy_id,))
            self._disk.read(copy_id, batch[: len(host_block_ids)], host_block_ids, self._now)


def _blocks(nodes: Iterable[PrefixNode]) -> tuple[BlockId, ...]:
    return tuple(node.block_id for node in nodes if node.block_id is not None)
