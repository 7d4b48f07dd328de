"""The files of the disk tier: one a block, found by its prefix key.

    DIRECTORY/<fingerprint>/<first byte of the key>/<key>.kv       a block
    DIRECTORY/<fingerprint>/<first byte of the key>/<anything>.tmp one that is being written

A file comes to be by a rename after its content was synced, so a name means a whole file, also after a kill at any
moment. What was lost or changed nevertheless is found by the digest. Whether the rename itself survives a power cut
does not matter: without it there is one block less.

Several workers may use one directory, also after a restart: equal names mean equal contents. Workers with another
model, layout or number format use another directory inside.

Order: any thread; one at a time for each key.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lineclear.kv import disk_format
from lineclear.kv.copies import CopyFailure
from lineclear.kv.disk_format import HEADER_BYTES
from lineclear.kv.prefix_key import KEY_BYTES, PrefixKey

SUFFIX: Final = ".kv"
TEMPORARY_SUFFIX: Final = ".tmp"

IOV_MAX: Final = 1024
"""Buffers of one system call at most."""

FILE_SYSTEM_BLOCK_BYTES: Final = 4096
"""Files take whole ones."""

STALE_SECONDS: Final = 3600.0
"""After so long nobody is still writing a file."""

_FAILURES: Final = {
    disk_format.Fault.DAMAGED: CopyFailure.DAMAGED,
    disk_format.Fault.FOREIGN: CopyFailure.FOREIGN,
}


def file_size_bytes(block_bytes: int) -> int:
    """What the file of a block takes on disk."""
    return -(-(HEADER_BYTES + block_bytes) // FILE_SYSTEM_BLOCK_BYTES) * FILE_SYSTEM_BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as its directory has it; whether it is any good shows when it is read."""

    key: PrefixKey
    modified: float


class DiskFiles:
    """The files of one fingerprint.

    Args:
        directory: of the disk tier, made if it is not there.
        fingerprint: of model, layout and all else that the KV depends on.
        write_all: writes all buffers to a descriptor; tests let it fail.
    """

    def __init__(
        self,
        directory: Path,
        fingerprint: bytes,
        write_all: Callable[[int, Sequence[bytes | memoryview]], None] | None = None,
    ) -> None:
        self._directory = directory / fingerprint.hex()[:16]
        self._fingerprint = fingerprint
        self._write_all = write_all or _write_all
        self._names = itertools.count()
        for first in range(256):
            (self._directory / f"{first:02x}").mkdir(parents=True, exist_ok=True)

    def path(self, key: PrefixKey) -> Path:
        """Where a prefix's last block is."""
        return self._directory / f"{key[0]:02x}" / f"{key.hex()}{SUFFIX}"

    def exists(self, key: PrefixKey) -> bool:
        """Whether a prefix has a file."""
        return self.path(key).exists()

    def write(self, key: PrefixKey, payload: Sequence[memoryview]) -> None:
        """Write a block, unless its file is there.

        Raises: OSError; nothing is left behind then.
        """
        path = self.path(key)
        if path.exists():
            return
        temporary = path.with_name(f"{os.getpid()}-{next(self._names)}-{time.time_ns()}{TEMPORARY_SUFFIX}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                self._write_all(descriptor, [disk_format.header(self._fingerprint, key, payload), *payload])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def read(self, key: PrefixKey, payload: Sequence[memoryview]) -> CopyFailure | None:
        """Read a block into buffers of its parts' sizes; what they hold after a failure is junk."""
        found = bytearray(HEADER_BYTES)
        try:
            descriptor = os.open(self.path(key), os.O_RDONLY)
        except FileNotFoundError:
            return CopyFailure.MISSING
        except OSError:
            return CopyFailure.IO
        try:
            is_whole = _read_all(descriptor, [memoryview(found), *payload])
        except OSError:
            return CopyFailure.IO
        finally:
            os.close(descriptor)
        fault = disk_format.check(bytes(found), self._fingerprint, key, payload)
        if fault is None and not is_whole:
            return CopyFailure.DAMAGED
        return None if fault is None else _FAILURES[fault]

    def delete(self, key: PrefixKey) -> None:
        """Remove a file, if it is there and can be removed."""
        with contextlib.suppress(OSError):
            self.path(key).unlink()

    def scan(self) -> list[FoundFile]:
        """Return all files, the oldest first, and remove what writers have left that were killed."""
        found = [each for folder in self._directory.iterdir() if folder.is_dir() for each in _scan_folder(folder)]
        return sorted(found, key=lambda each: each.modified)


def _scan_folder(folder: Path) -> Iterator[FoundFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(TEMPORARY_SUFFIX):
                _remove_if_stale(Path(entry.path))
            elif (key := _key_of(entry.name)) is not None and entry.name.startswith(folder.name):
                with contextlib.suppress(OSError):  # another worker has just deleted it
                    yield FoundFile(key, entry.stat().st_mtime)


def _key_of(name: str) -> PrefixKey | None:
    stem, dot, suffix = name.partition(".")
    if dot + suffix != SUFFIX or len(stem) != 2 * KEY_BYTES or set(stem) - set("0123456789abcdef"):
        return None
    return PrefixKey(bytes.fromhex(stem))


def _remove_if_stale(path: Path) -> None:
    """Remove it if its writer is dead. Where that is wrong, as between containers, its writer has one failed write."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.name.partition("-")[0])
        if not Path(f"/proc/{pid}").exists() or time.time() - path.stat().st_mtime > STALE_SECONDS:
            path.unlink()


def _write_all(descriptor: int, buffers: Sequence[bytes | memoryview]) -> None:
    left = [memoryview(each) for each in buffers]
    while left:
        left = _after(left, os.writev(descriptor, left[:IOV_MAX]))


def _read_all(descriptor: int, buffers: Sequence[memoryview]) -> bool:
    """Fill all buffers; whether the file was as long as they are."""
    left = list(buffers)
    while left:
        num_read = os.readv(descriptor, left[:IOV_MAX])
        if num_read == 0:
            return False
        left = _after(left, num_read)
    return not os.read(descriptor, 1)


def _after(buffers: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of buffers after their first bytes."""
    for idx, buffer in enumerate(buffers):
        if num_bytes < len(buffer):
            return [buffer[num_bytes:], *buffers[idx + 1 :]]
        num_bytes -= len(buffer)
    return []
