"""Imports: rows of a public format to a trace file, in two passes, so that memory holds one row at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from lineclear.base.errors import ConfigError, TraceError, UserError
from lineclear.lab.files import Row, TraceWriter, rows_of
from lineclear.trace.events import VERSION, Arrived, Event, Header
from lineclear.trace.importers.azure import AzureParser
from lineclear.trace.importers.mooncake import MooncakeParser
from lineclear.trace.importers.request_log import RequestLogParser
from lineclear.trace.importers.rows import RowParser
from lineclear.trace.importers.sessions import SessionParser
from lineclear.trace.importers.transcripts import TranscriptParser

FORMATS: tuple[str, ...] = ("sessions", "mooncake", "azure", "transcripts", "request-log")

OnBadRow: TypeAlias = Callable[[str], None]
OnProgress: TypeAlias = Callable[[int, int], None]
"""The pass, 1 or 2, and rows read in it."""


@dataclass(frozen=True)
class ImportCount:
    """What came of an import."""

    num_rows: int
    num_bad_rows: int
    num_requests: int


@dataclass(frozen=True)
class ImportPlan:
    """What to import.

    Args:
        max_rows: the first so many rows alone; all where it is None.
        stagger_s: see `SessionParser`.
    """

    source: Path
    format: str
    max_rows: int | None = None
    stagger_s: float = 0.0

    def parser(self) -> RowParser:
        """A new parser of the format.

        Raises:
            ConfigError: There is no such format.
        """
        match self.format:
            case "sessions":
                return SessionParser(self.stagger_s)
            case "mooncake":
                return MooncakeParser()
            case "azure":
                return AzureParser()
            case "transcripts":
                return TranscriptParser()
            case "request-log":
                return RequestLogParser()
            case _:
                raise ConfigError("format", self.format, ", ".join(FORMATS))


def import_trace(plan: ImportPlan, path: Path, on_bad_row: OnBadRow, on_progress: OnProgress) -> ImportCount:
    """Write the trace; bad rows are told as they are found and counted. Its time 0 is the earliest arrival.

    Raises:
        ConfigError: The source cannot be read, or no row of it can be used.
    """
    first_pass = _Pass(plan, on_bad_row, lambda rows: on_progress(1, rows))
    start_s = min((event.at_s for event in first_pass.events() if event.at_s is not None), default=None)
    if start_s is None:
        raise ConfigError("source", str(plan.source), f"at least one row of the format {plan.format}")
    parser = plan.parser()
    writer = TraceWriter(path, Header(version=VERSION, block_len=parser.block_len, source=parser.source))
    try:
        for event in _Pass(plan, lambda _: None, lambda rows: on_progress(2, rows)).events():
            writer.write(_moved(event, -start_s))
        writer.finish()
    except BaseException:
        writer.discard()
        raise
    return first_pass.count()


def _moved(event: Event, by_s: float) -> Event:
    return event if event.at_s is None else msgspec.structs.replace(event, at_s=round(event.at_s + by_s, 6))


class _Pass:
    def __init__(self, plan: ImportPlan, on_bad_row: OnBadRow, on_rows: Callable[[int], None]) -> None:
        self._plan = plan
        self._on_bad_row = on_bad_row
        self._on_rows = on_rows
        self._num_rows, self._num_bad_rows, self._num_requests = 0, 0, 0

    def events(self) -> Iterator[Event]:
        parser = self._plan.parser()
        for number, row in enumerate(rows_of(self._plan.source), 1):
            if self._plan.max_rows is not None and number > self._plan.max_rows:
                return
            self._num_rows += 1
            self._on_rows(number)
            yield from self._parsed(parser, number, row)

    def _parsed(self, parser: RowParser, number: int, row: Row) -> list[Event]:
        try:
            events = parser.parse(number, row.text)
        except TraceError as error:
            self._num_bad_rows += 1
            self._on_bad_row(f"{row.file}, line {row.line}: {UserError.__str__(error)}")
            return []
        self._num_requests += sum(isinstance(event, Arrived) for event in events)
        return events

    def count(self) -> ImportCount:
        return ImportCount(self._num_rows, self._num_bad_rows, self._num_requests)
