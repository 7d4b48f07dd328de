import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from lineclear.base.ids import BlockId
from lineclear.engine import disk_stream
from lineclear.engine.bell import wait_readable
from lineclear.engine.disk_files import DiskFiles
from lineclear.engine.disk_stream import DiskStream
from lineclear.kv.copies import CopyEnd, CopyFailure, CopyId, DiskDelete, DiskFind, DiskRead, DiskWrite
from lineclear.kv.prefix_key import PrefixKey, child_key

KEYS = tuple(child_key(None, bytes([number])) for number in range(4))
BLOCKS = tuple(BlockId(number) for number in range(4))


class Memory:
    """Four blocks of two parts."""

    def __init__(self) -> None:
        self.blocks = [[bytearray([number] * 100), bytearray([number] * 7)] for number in range(4)]

    def parts(self, block_id: BlockId) -> list[memoryview]:
        return [memoryview(part) for part in self.blocks[block_id]]


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def open_stream(tmp_path: Path, memory: Memory) -> Iterator[Callable[..., DiskStream]]:
    streams: list[DiskStream] = []

    def make(write_all: Callable[[int, Sequence[bytes | memoryview]], None] | None = None) -> DiskStream:
        files = DiskFiles(tmp_path, bytes(32), write_all)
        streams.append(DiskStream(files, memory.parts, scan_writes=4))
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


def end_of(stream: DiskStream) -> CopyEnd:
    while True:
        wait_readable([stream.fileno()])
        ends = stream.poll()
        if ends:
            assert len(ends) == 1
            return ends[0]


def test_blocks_come_back_and_the_disk_is_looked_at(open_stream: Callable[..., DiskStream], memory: Memory) -> None:
    stream = open_stream()
    stream.start(DiskWrite(CopyId(0), KEYS, BLOCKS))
    assert end_of(stream) == CopyEnd(CopyId(0), 4)
    for block in memory.blocks:
        for part in block:
            part[:] = bytes(len(part))
    stream.start(DiskRead(CopyId(1), KEYS, BLOCKS))
    assert end_of(stream) == CopyEnd(CopyId(1), 4)
    assert memory.blocks == Memory().blocks
    found: list[PrefixKey] = []
    while not found:
        wait_readable([stream.fileno()], 0.01)
        found = stream.take_found()
    assert sorted(found) == sorted(KEYS)


def test_a_find_and_a_read_stop_at_what_is_missing(open_stream: Callable[..., DiskStream]) -> None:
    stream = open_stream()
    stream.start(DiskWrite(CopyId(0), (KEYS[0], KEYS[1], KEYS[3]), BLOCKS[:3]))
    end_of(stream)
    stream.start(DiskFind(CopyId(1), KEYS))
    assert end_of(stream) == CopyEnd(CopyId(1), 2)
    stream.start(DiskRead(CopyId(2), KEYS, BLOCKS))
    assert end_of(stream) == CopyEnd(CopyId(2), 2, CopyFailure.MISSING)


def test_a_delete_comes_after_the_writes_before_it(open_stream: Callable[..., DiskStream]) -> None:
    stream = open_stream()
    stream.start(DiskWrite(CopyId(0), KEYS[:1], BLOCKS[:1]))
    stream.start(DiskDelete(KEYS[:1]))
    stream.start(DiskWrite(CopyId(1), KEYS[1:2], BLOCKS[1:2]))
    ends = [end_of(stream)]
    if ends[-1].copy_id == 0:
        ends.append(end_of(stream))
    stream.start(DiskFind(CopyId(2), KEYS[:1]))
    assert end_of(stream) == CopyEnd(CopyId(2), 0)


def test_a_full_disk_is_no_disk_for_a_while(
    open_stream: Callable[..., DiskStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_tries = 0

    def fill_up(descriptor: int, buffers: Sequence[bytes | memoryview]) -> None:  # noqa: ARG001
        nonlocal num_tries
        num_tries += 1
        raise OSError(errno.ENOSPC, "no space left on device")

    stream = open_stream(fill_up)
    for number in range(3):
        stream.start(DiskWrite(CopyId(number), KEYS, BLOCKS))
        assert end_of(stream) == CopyEnd(CopyId(number), 0, CopyFailure.FULL)
    assert num_tries == 1
    monkeypatch.setattr(disk_stream.time, "monotonic", lambda: 1e12)
    stream.start(DiskWrite(CopyId(3), KEYS, BLOCKS))
    end_of(stream)
    assert num_tries == 2


def test_other_errors_are_told_apart(open_stream: Callable[..., DiskStream]) -> None:
    def deny(descriptor: int, buffers: Sequence[bytes | memoryview]) -> None:  # noqa: ARG001
        raise PermissionError(errno.EACCES, "denied")

    stream = open_stream(deny)
    stream.start(DiskWrite(CopyId(0), KEYS, BLOCKS))
    assert end_of(stream) == CopyEnd(CopyId(0), 0, CopyFailure.IO)
