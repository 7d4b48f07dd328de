"""The disk: which prefixes have a file, as far as this worker knows, and which are being written or read.

A file takes one block of the budget. Other workers write and delete in the same directory: what is known here is a
guess, and a read that fails corrects it.

Invariants:
    1. A prefix has a known file, is being written once, or neither.
    2. A file that is being read, and a block of the host that is being written out, are held until the copy ends.
    3. Whatever leaves the index has its file deleted, unless it is gone already.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId
from lineclear.kv.copies import CopyEnd, CopyFailure, CopyId, DiskDelete, DiskRead, DiskWrite
from lineclear.kv.copy_book import CopyBook, reader_of, writer_of
from lineclear.kv.pool import BlockPool, Holder
from lineclear.kv.prefix_key import PrefixKey, family_of
from lineclear.kv.tier_index import Named, TierIndex

WRITE_BATCH: Final = 16
READ_BATCH: Final = 16
"""Blocks of one copy: its end is news for who waits, and lets go of its blocks."""


@dataclass(slots=True)
class _Write:
    names: list[Named]
    disk_block_ids: list[BlockId]
    host_block_ids: tuple[BlockId, ...]


@dataclass(slots=True)
class _Read:
    names: list[Named]
    disk_block_ids: list[BlockId]


class DiskTier:
    """The budget of files, and the copies between them and host memory.

    Args:
        num_blocks: files that there is room for.
        host: the blocks that are read and written; the disk holds them while it does.
        book: where copies are put down.
    """

    def __init__(self, num_blocks: int, host: BlockPool, book: CopyBook) -> None:
        self.index: Final = TierIndex(num_blocks)
        self._host = host
        self._book = book
        self._writes: dict[CopyId, _Write] = {}
        self._writing: dict[PrefixKey, CopyId] = {}
        self._reads: dict[CopyId, _Read] = {}

    def is_known(self, key: PrefixKey) -> bool:
        """Whether a prefix has a file or is being written."""
        return key in self.index or key in self._writing

    def note(self, named: Named, now: int) -> None:
        """Somebody has seen the file of a prefix. Without room for it, and with nothing to give up, it is ignored."""
        if self.is_known(named.key):
            return
        holder = writer_of(self._book.next_id())
        block_ids = self._try_allocate(1, holder)
        if block_ids:
            self.index.add(named, block_ids[0], now)
            self.index.pool.release(block_ids, holder)

    def write(self, names: Sequence[Named], host_block_ids: Sequence[BlockId]) -> None:
        """Begin to write those that are not known, as far as there is room; holds their blocks of the host."""
        wanted = [pair for pair in zip(names, host_block_ids, strict=True) if not self.is_known(pair[0].key)]
        for start in range(0, len(wanted), WRITE_BATCH):
            batch = wanted[start : start + WRITE_BATCH]
            copy_id = self._book.next_id()
            disk_block_ids = self._try_allocate(len(batch), writer_of(copy_id))
            if disk_block_ids is None:
                return
            blocks = tuple(block_id for _, block_id in batch)
            self._host.acquire(blocks, reader_of(copy_id))
            self._writes[copy_id] = _Write([named for named, _ in batch], disk_block_ids, blocks)
            self._writing |= {named.key: copy_id for named, _ in batch}
            self._book.start(DiskWrite(copy_id, tuple(named.key for named, _ in batch), blocks))

    def read(self, copy_id: CopyId, names: Sequence[Named], host_block_ids: tuple[BlockId, ...], now: int) -> None:
        """Begin to read files that are in the index into blocks of the host that the copy holds."""
        disk_block_ids = [block_id for named in names if (block_id := self.index.block_id(named.key)) is not None]
        self.index.pool.acquire(disk_block_ids, reader_of(copy_id))
        self.index.touch(names[-1].key, now)
        self._reads[copy_id] = _Read(list(names), disk_block_ids)
        self._book.start(DiskRead(copy_id, tuple(named.key for named in names), host_block_ids))

    @property
    def num_writing(self) -> int:
        """Blocks of the host that are being written out."""
        return sum(len(write.host_block_ids) for write in self._writes.values())

    def ends_write(self, copy_id: CopyId) -> bool:
        """Whether a copy is a write to disk."""
        return copy_id in self._writes

    def ends_read(self, copy_id: CopyId) -> bool:
        """Whether a copy is a read from disk."""
        return copy_id in self._reads

    def end_write(self, end: CopyEnd, now: int) -> None:
        """Take in the files that were written."""
        write = self._writes.pop(end.copy_id)
        unwanted: list[PrefixKey] = []
        for idx, (named, block_id) in enumerate(zip(write.names, write.disk_block_ids, strict=True)):
            is_wanted = self._writing.get(named.key) == end.copy_id
            if is_wanted:
                del self._writing[named.key]
            if idx < end.num_done:
                if is_wanted:
                    self.index.add(named, block_id, now)
                else:
                    unwanted.append(named.key)
        self.index.pool.release(write.disk_block_ids, writer_of(end.copy_id))
        self._host.release(write.host_block_ids, reader_of(end.copy_id))
        self._delete(key for key in unwanted if not self.is_known(key))

    def end_read(self, end: CopyEnd) -> None:
        """Let go of the files, and for good of what could not be read.

        After one that is not what it should be the rest of the batch goes as well: without it nobody can use them
        before it is written anew, and whatever befell it may have befallen them.
        """
        read = self._reads.pop(end.copy_id)
        self.index.pool.release(read.disk_block_ids, reader_of(end.copy_id))
        is_bad = end.failure in {CopyFailure.DAMAGED, CopyFailure.FOREIGN}
        lost = [named.key for named in read.names[end.num_done :][: None if is_bad else 1]]
        for key in lost:
            if key in self.index:
                self.index.remove(key)
        self._delete(key for key in lost if is_bad and not self.is_known(key))

    def forget_family(self, family: bytes) -> None:
        """Give up all prefixes of a family, those that are being written as well."""
        self._delete(self.index.forget_family(family))
        for key in [each for each in self._writing if family_of(each) == family]:
            del self._writing[key]

    def check(self) -> None:
        """Check the index, and that every other hold belongs to a copy.

        Raises: InvariantError if not. Cost: proportional to the tier.
        """
        self.index.check()
        expected = {
            (each, writer_of(copy_id)) for copy_id, write in self._writes.items() for each in write.disk_block_ids
        }
        expected |= {
            (each, reader_of(copy_id)) for copy_id, read in self._reads.items() for each in read.disk_block_ids
        }
        found = {
            (block_id, holder)
            for block_id, holders in self.index.pool.held_blocks()
            for holder in holders
            if holder.kind is not holder.kind.TREE
        }
        if expected != found:
            raise InvariantError("disk tier: a file is held by nobody known, or its hold is lost")
        if any(key in self.index for key in self._writing):
            raise InvariantError("disk tier: a prefix has a file and is being written")

    def _try_allocate(self, count: int, holder: Holder) -> list[BlockId] | None:
        if count > self.index.num_available:
            return None
        self._delete(self.index.evict(count))
        return self.index.pool.try_allocate(count, holder)

    def _delete(self, keys: Iterable[PrefixKey]) -> None:
        keys = tuple(keys)
        if keys:
            self._book.start(DiskDelete(keys))
