"""Reads and writes the files of the disk tier in two threads: nobody who waits for a read waits for a write.

    owner: start ──▶ reader: finds, reads            ──▶ owner: poll
                └──▶ writer: writes, deletes, scans  ──┘

Invariants:
1. Every find, read and write is answered by one `CopyEnd`, whatever the file system says.
2. Writes and deletes are done in the order in which they were started.
3. After a write has found the disk full, writes are refused unseen for `REST_SECONDS`: a full disk is no disk.
"""

import contextlib
import errno
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, assert_never

from lineclear.base.ids import BlockId
from lineclear.engine.bell import Bell
from lineclear.engine.disk_files import DiskFiles
from lineclear.kv.copies import CopyEnd, CopyFailure, DiskDelete, DiskFind, DiskRead, DiskWrite
from lineclear.kv.prefix_key import PrefixKey

REST_SECONDS: Final = 60.0
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

DiskCopy: TypeAlias = DiskFind | DiskRead | DiskWrite | DiskDelete
Parts: TypeAlias = Callable[[BlockId], Sequence[memoryview]]
"""Gives the bytes of a block of host memory, part after part."""


def _at_once() -> None:
    """No delay."""


class DiskStream:
    """The two threads.

    Args:
        files: what they read and write.
        parts: the blocks of host memory.
        scan_writes: after so many written blocks the writer looks what others have written.
        before_file: called in the thread before each file; tests delay copies with it.
    """

    def __init__(
        self, files: DiskFiles, parts: Parts, *, scan_writes: int, before_file: Callable[[], None] = _at_once
    ) -> None:
        self._files = files
        self._parts = parts
        self._scan_writes = scan_writes
        self._before_file = before_file
        self._to_reader: queue.SimpleQueue[DiskFind | DiskRead | None] = queue.SimpleQueue()
        self._to_writer: queue.SimpleQueue[DiskWrite | DiskDelete | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[CopyEnd] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[list[PrefixKey]] = queue.SimpleQueue()
        self._bell = Bell()
        self._full_until = 0.0
        self._num_written = 0
        self._is_closing = False
        self.read_seconds = 0.0
        self.write_seconds = 0.0
        self._threads = [
            threading.Thread(target=self._run_reader, name="disk reader", daemon=True),
            threading.Thread(target=self._run_writer, name="disk writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def start(self, copy: DiskCopy) -> None:
        """Begin a copy."""
        match copy:
            case DiskFind() | DiskRead():
                self._to_reader.put(copy)
            case DiskWrite() | DiskDelete():
                self._to_writer.put(copy)
            case _:
                assert_never(copy)

    def poll(self) -> list[CopyEnd]:
        """Return the copies that have ended since the last call."""
        self._bell.silence()
        return [self._ended.get_nowait() for _ in range(self._ended.qsize())]

    def take_found(self) -> list[PrefixKey]:
        """Return what a look at the disk has found, if there was one since the last call; the oldest first."""
        found: list[PrefixKey] = []
        for _ in range(self._found.qsize()):
            found = self._found.get_nowait()
        return found

    def fileno(self) -> int:
        """A descriptor that is readable while there may be copies that have ended."""
        return self._bell.fileno()

    def close(self) -> None:
        """Give up what is not begun and join the threads."""
        self._is_closing = True
        self._to_reader.put(None)
        self._to_writer.put(None)
        for thread in self._threads:
            thread.join()
        self._bell.close()

    def _run_reader(self) -> None:
        while (copy := self._to_reader.get()) is not None and not self._is_closing:
            started = time.perf_counter()
            self._end(self._find(copy) if isinstance(copy, DiskFind) else self._read(copy))
            self.read_seconds += time.perf_counter() - started

    def _run_writer(self) -> None:
        while (copy := self._to_writer.get()) is not None and not self._is_closing:
            if isinstance(copy, DiskDelete):
                for key in copy.keys:
                    self._files.delete(key)
                continue
            started = time.perf_counter()
            self._end(self._write(copy))
            self.write_seconds += time.perf_counter() - started
            self._scan_now_and_then(len(copy.keys))

    def _end(self, end: CopyEnd) -> None:
        self._ended.put(end)
        self._bell.ring()

    def _find(self, copy: DiskFind) -> CopyEnd:
        missing = (idx for idx, key in enumerate(copy.keys) if not self._files.exists(key))
        return CopyEnd(copy.copy_id, next(missing, len(copy.keys)))

    def _read(self, copy: DiskRead) -> CopyEnd:
        for idx, (key, block_id) in enumerate(zip(copy.keys, copy.host_block_ids, strict=True)):
            self._before_file()
            failure = self._files.read(key, self._parts(block_id))
            if failure is not None:
                return CopyEnd(copy.copy_id, idx, failure)
        return CopyEnd(copy.copy_id, len(copy.keys))

    def _write(self, copy: DiskWrite) -> CopyEnd:
        for idx, (key, block_id) in enumerate(zip(copy.keys, copy.host_block_ids, strict=True)):
            if time.monotonic() < self._full_until:
                return CopyEnd(copy.copy_id, idx, CopyFailure.FULL)
            self._before_file()
            try:
                self._files.write(key, self._parts(block_id))
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    return CopyEnd(copy.copy_id, idx, CopyFailure.IO)
                self._full_until = time.monotonic() + REST_SECONDS
                return CopyEnd(copy.copy_id, idx, CopyFailure.FULL)
        return CopyEnd(copy.copy_id, len(copy.keys))

    def _scan_now_and_then(self, num_written: int) -> None:
        self._num_written += num_written
        if self._num_written >= self._scan_writes:
            self._num_written = 0
            with contextlib.suppress(OSError):
                self._found.put([each.key for each in self._files.scan()])
                self._bell.ring()
