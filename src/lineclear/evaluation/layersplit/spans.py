"""Spans of all ranks, which are other processes: each writes a line a span into a file of its own.

A clock for all of them is `time.perf_counter_ns`, which on Linux is the machine's.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from lineclear.base.errors import InvariantError
from lineclear.parallel.communicator import Lane
from lineclear.parallel.meter import Happening, Span

SpansByRank: TypeAlias = dict[int, list[Span]]

PATIENCE_SECONDS: Final = 20.0
"""How long a rank may take longer than rank 0 to write its last spans of a step."""

PAUSE_SECONDS = 0.02


class SpanFile:
    """The sink of one rank; whoever writes a line has written it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, span: Span) -> None:
        """Add a line. Order: any thread."""
        self._file.write(self._encode(span) + b"\n")

    def close(self) -> None:
        """Write no more. Order: after the last pass."""
        self._file.close()


class SpanReader:
    """Reads what ranks write.

    Args:
        paths: by rank; a file may not be there yet.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._places = [0] * len(paths)
        self._decoder = msgspec.json.Decoder(Span)

    def skip(self) -> None:
        """Read nothing that is there by now."""
        self._places = [path.stat().st_size if path.exists() else 0 for path in self._paths]

    def read(self, since_ns: int) -> SpansByRank:
        """All that began since then, when every rank has written it.

        Raises: InvariantError if they do not come to the same transfers.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            spans = {rank: self._read_rank(rank, since_ns) for rank in range(len(self._paths))}
            if is_complete(spans):
                self.skip()
                return spans
            if time.monotonic() > deadline:
                raise InvariantError(f"ranks have written different transfers: {_counts(spans)}")
            time.sleep(PAUSE_SECONDS)

    def _read_rank(self, rank: int, since_ns: int) -> list[Span]:
        path = self._paths[rank]
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._places[rank])
            whole, _, _ = file.read().rpartition(b"\n")
        spans = (self._decoder.decode(line) for line in whole.splitlines())
        return [span for span in spans if span.started_ns >= since_ns]


def is_complete(spans: SpansByRank) -> bool:
    """Whether every transfer is there at all its ends."""
    counts = _counts(spans)
    gathers = {of_rank[Happening.GATHER] for of_rank in counts.values()}
    num_waits = {of_rank[Happening.WAIT] for of_rank in counts.values()}
    num_sent = sum(of_rank[Happening.BROADCAST] for of_rank in counts.values())
    num_received = sum(of_rank[Happening.RECEIVE] for of_rank in counts.values())
    return len(gathers) == len(num_waits) == 1 and num_received == num_sent * (len(spans) - 1)


def is_broadcast_wait(span: Span) -> bool:
    """Whether the pass stood before a part of a layer that its owner sends."""
    return span.happening is Happening.WAIT and span.part in {Lane.INDEX.value, Lane.LATENT.value}


def _counts(spans: SpansByRank) -> dict[int, Counter[Happening]]:
    return {rank: Counter(span.happening for span in of_rank) for rank, of_rank in spans.items()}
