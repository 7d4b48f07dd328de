"""A timeline of all ranks, as the JSON that chrome://tracing and ui.perfetto.dev show."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from lineclear.parallel.communicator import Lane
from lineclear.parallel.meter import COMPUTING, Span

_TRACKS = (COMPUTING, *(lane.value for lane in Lane))


def write_timeline(path: Path, spans_by_rank: Mapping[int, Iterable[Span]]) -> None:
    """Write what ranks of one machine did: a process a rank, a thread for the pass and for each lane.

    Units: microseconds since the first span.
    """
    spans = {rank: list(each) for rank, each in spans_by_rank.items()}
    start_ns = min((span.started_ns for each in spans.values() for span in each), default=0)
    events: list[dict[str, object]] = []
    for rank, of_rank in spans.items():
        events += _names(rank)
        events += [_event(rank, span, start_ns) for span in of_rank]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def _names(rank: int) -> list[dict[str, object]]:
    process: dict[str, object] = {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"cp_rank {rank}"}}
    threads: list[dict[str, object]] = [
        {"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": track}}
        for tid, track in enumerate(_TRACKS)
    ]
    return [process, *threads]


def _event(rank: int, span: Span, start_ns: int) -> dict[str, object]:
    where = "" if span.layer is None else f" {span.layer}"
    what = "" if span.part is None else f" {span.part}"
    return {
        "ph": "X",
        "pid": rank,
        "tid": _TRACKS.index(span.track),
        "name": f"{span.happening.value}{where}{what}",
        "ts": (span.started_ns - start_ns) / 1000,
        "dur": (span.ended_ns - span.started_ns) / 1000,
        "args": {"layer": span.layer, "part": span.part, "bytes": span.num_bytes},
    }
