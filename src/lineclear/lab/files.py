"""Files of traces and of the formats that are imported: plain, gzip, or a tar archive of many."""

import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from lineclear.base.errors import ConfigError
from lineclear.trace.codec import TraceDecoder, TraceEncoder
from lineclear.trace.events import Event, Header

BinarySource: TypeAlias = IO[bytes] | gzip.GzipFile

_MAX_LINE_BYTES = 256 * 2**20
"""A session of a coding agent is one line of 10 MB; what is longer than this is no row."""


class TraceReader:
    """One trace: its header, and its events as often as one likes. A last line that a crash cut is left out.

    Raises:
        ConfigError: There is no such file.
        TraceError: A line cannot be used; also from `events`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _opened(path) as file:
            self.header: Header = TraceDecoder().header(file.readline())

    def events(self) -> Iterator[Event]:
        """All events, one after the other."""
        decoder = TraceDecoder()
        with _opened(self._path) as file:
            decoder.header(file.readline())
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield decoder.event(line)


class TraceWriter:
    """Writes a trace beside its place, and moves it there when all is written."""

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._encoder = TraceEncoder()
        self._file = gzip.open(self._part, "wb", 6) if path.suffix == ".gz" else self._part.open("wb")  # noqa: SIM115
        self._file.write(self._encoder.header(header))

    def write(self, event: Event) -> None:
        """Add an event."""
        self._file.write(self._encoder.line(event))

    def finish(self) -> None:
        """Put the file in its place."""
        self._file.close()
        os.replace(self._part, self._path)  # noqa: PTH105 - replaces what is there, also on systems where rename does not

    def discard(self) -> None:
        """Leave nothing."""
        self._file.close()
        self._part.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a source, and where it is."""

    file: str
    line: int
    """From 1."""
    text: str


def rows_of(path: Path) -> Iterator[Row]:
    """Lines that are not blank, of a file, a folder or an archive; a `.json` file is one line.

    Raises:
        ConfigError: There is no such file, or it is damaged.
    """
    try:
        if path.is_dir():
            for each in sorted(path.iterdir()):
                if {".json", ".jsonl", ".csv"} & set(each.suffixes):
                    yield from rows_of(each)
        elif ".tar" in path.suffixes or path.suffix == ".tgz":
            yield from _archive_rows(path)
        else:
            with _opened(path) as file:
                yield from _rows(path.name, file)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise ConfigError("source", str(path), f"a file that can be read ({error})") from error


def _archive_rows(path: Path) -> Iterator[Row]:
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                with file:
                    yield from _rows(member.name, file)


def _rows(name: str, file: BinarySource) -> Iterator[Row]:
    if name.removesuffix(".gz").endswith(".json"):
        yield Row(name, 1, file.read().decode("utf-8", "replace"))
        return
    number = 0
    while line := file.readline(_MAX_LINE_BYTES):
        number += 1
        if line.strip():
            yield Row(name, number, line.decode("utf-8", "replace"))


def _opened(path: Path) -> BinarySource:
    try:
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise ConfigError("trace", str(path), f"a file that can be read ({error})") from error
