"""Whole files come back as they were; whatever else is in their place is a miss with a reason."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lineclear.engine.disk_files import DiskFiles
from lineclear.kv.copies import CopyFailure
from lineclear.kv.disk_format import HEADER_BYTES
from lineclear.kv.prefix_key import PrefixKey, child_key

FINGERPRINT = bytes(range(32))
KEY = child_key(None, b"some tokens")
OTHER = child_key(KEY, b"more tokens")
PAYLOAD = [b"latent" * 20, b"index" * 7, b"draft"]


@pytest.fixture
def files(tmp_path: Path) -> DiskFiles:
    files = DiskFiles(tmp_path, FINGERPRINT)
    files.write(KEY, views(PAYLOAD))
    return files


def views(payload: Sequence[bytes]) -> list[memoryview]:
    return [memoryview(each) for each in payload]


def read(files: DiskFiles, key: PrefixKey = KEY) -> list[bytes] | CopyFailure:
    buffers = [bytearray(len(each)) for each in PAYLOAD]
    failure = files.read(key, [memoryview(each) for each in buffers])
    return [bytes(each) for each in buffers] if failure is None else failure


def test_what_was_written_comes_back_also_to_another_worker(files: DiskFiles, tmp_path: Path) -> None:
    assert read(files) == PAYLOAD
    assert read(DiskFiles(tmp_path, FINGERPRINT)) == PAYLOAD
    assert [each.key for each in files.scan()] == [KEY]
    assert files.exists(KEY)
    assert not files.exists(OTHER)


def test_another_model_does_not_find_it(files: DiskFiles, tmp_path: Path) -> None:
    other = DiskFiles(tmp_path, bytes(32))
    assert read(other) is CopyFailure.MISSING
    assert other.scan() == []
    other.path(KEY).write_bytes(files.path(KEY).read_bytes())
    assert read(other) is CopyFailure.FOREIGN


def test_a_file_under_another_name_is_foreign(files: DiskFiles) -> None:
    files.path(OTHER).write_bytes(files.path(KEY).read_bytes())
    assert read(files, OTHER) is CopyFailure.FOREIGN


def test_a_file_that_is_cut_anywhere_is_a_miss(files: DiskFiles) -> None:
    whole = files.path(KEY).read_bytes()
    for length in range(len(whole)):
        files.path(KEY).write_bytes(whole[:length])
        assert read(files) in {CopyFailure.DAMAGED, CopyFailure.FOREIGN}, length
    files.path(KEY).write_bytes(whole + b"x")
    assert read(files) is CopyFailure.DAMAGED


def test_a_flipped_bit_anywhere_is_a_miss(files: DiskFiles) -> None:
    whole = files.path(KEY).read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        files.path(KEY).write_bytes(damaged)
        assert read(files) in {CopyFailure.DAMAGED, CopyFailure.FOREIGN}, position
    files.path(KEY).write_bytes(whole)
    assert read(files) == PAYLOAD


@settings(max_examples=300)
@given(content=st.binary(max_size=2 * HEADER_BYTES + 200), keeps_header=st.booleans())
@example(content=b"", keeps_header=False)
@example(content=b"", keeps_header=True)
def test_no_content_is_taken_for_the_block(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, *, keeps_header: bool
) -> None:
    files = DiskFiles(tmp_path_factory.getbasetemp() / "fuzz", FINGERPRINT)
    files.delete(KEY)
    files.write(KEY, views(PAYLOAD))
    whole = files.path(KEY).read_bytes()
    forged = whole[:HEADER_BYTES] + content if keeps_header else content
    if forged != whole:
        files.path(KEY).write_bytes(forged)
        assert isinstance(read(files), CopyFailure)


def test_a_directory_in_place_of_a_file_is_a_miss(files: DiskFiles) -> None:
    files.path(OTHER).mkdir()
    assert read(files, OTHER) is CopyFailure.IO
    files.delete(OTHER)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fill_up(descriptor: int, buffers: Sequence[bytes | memoryview]) -> None:
        os.write(descriptor, buffers[0])
        raise OSError(errno.ENOSPC, "no space left on device")

    files = DiskFiles(tmp_path, FINGERPRINT, fill_up)
    with pytest.raises(OSError, match="no space"):
        files.write(KEY, views(PAYLOAD))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_killed_writers_left_is_removed_and_what_lives_is_not(files: DiskFiles) -> None:
    folder = files.path(KEY).parent
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    left, being_written = folder / f"{dead.pid}-0-1.tmp", folder / f"{os.getpid()}-9-1.tmp"
    strange = [folder / "notes.txt", folder / "zz.kv", folder / f"{OTHER.hex().upper()}.kv", folder / ".tmp"]
    for path in (left, being_written, *strange):
        path.write_bytes(b"half")
    assert [each.key for each in files.scan()] == [KEY]
    assert not left.exists()
    assert being_written.exists()
    assert all(path.exists() for path in strange)


def test_the_oldest_are_found_first(files: DiskFiles) -> None:
    files.write(OTHER, views(PAYLOAD))
    os.utime(files.path(OTHER), (1, 1))
    assert [each.key for each in files.scan()] == [OTHER, KEY]
