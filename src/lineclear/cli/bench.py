"""`lineclear bench layersplit`: both KV layouts of context-parallel ranks, measured side by side."""

import argparse
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from lineclear.base.errors import ConfigError
from lineclear.bundled import checkpoint_path
from lineclear.cli.argument_types import count, finite_number, output_file
from lineclear.config.components import ModelSource, ServeConfig
from lineclear.evaluation.figures import print_figures
from lineclear.evaluation.layersplit.bench import Bench
from lineclear.evaluation.layersplit.plot import require_matplotlib
from lineclear.evaluation.layersplit.records import Records, load_records, save_records
from lineclear.evaluation.layersplit.report import RECORDS_NAME, write_report, write_traces
from lineclear.evaluation.layersplit.setting import (
    FULL_LENGTHS,
    FULL_RANKS,
    MIN_SESSIONS,
    PRESSURE,
    SHORT_LENGTHS,
    SHORT_RANKS,
    Setting,
    sessions_for,
)
from lineclear.evaluation.layersplit.spans import SpansByRank
from lineclear.evaluation.layersplit.summary import figures
from lineclear.evaluation.layersplit.traffic import load_traffic
from lineclear.parallel.build import KvLayout
from lineclear.worker.ranks.instance import whole_shape

_EXIT_DISPROVED = 1
_TRACE_NAME = "step.trace.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, and where to write it."""
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    layersplit = subjects.add_parser("layersplit", help="LayerSplit against replicated KV: capacity, speed, waits")
    layersplit.add_argument("--short", action="store_true", help="two ranks, 8k to 24k tokens: minutes, not hours")
    layersplit.add_argument("--ranks", type=count, nargs="+", metavar="N", help="processes of an instance (2 4)")
    layersplit.add_argument("--lengths", type=count, nargs="+", metavar="TOKENS", help="of the prompts, rising")
    layersplit.add_argument(
        "--sessions", type=count, help="sessions in rotation; default: as many as memory has to bind with, 3 or more"
    )
    layersplit.add_argument(
        "--pressure",
        type=finite_number,
        default=PRESSURE,
        help="the first length's prompts, in memories of replicated ranks (default %(default)s)",
    )
    layersplit.add_argument(
        "--max-batch-tokens", type=count, default=8192, help="token budget of a step (default %(default)s)"
    )
    layersplit.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    layersplit.add_argument("--trace", type=output_file, metavar="FILE", help="write a step's timeline, for Perfetto")
    layersplit.add_argument(
        "--report", type=Path, metavar="DIR", help="write table, plot, timelines and records here, as they come"
    )
    layersplit.add_argument("--resume", action="store_true", help="go on with what is in the report's folder")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print every figure; the exit code says whether all checks on the results held."""
    setting = _setting(arguments)
    ranks = tuple(arguments.ranks or (SHORT_RANKS if arguments.short else FULL_RANKS))
    if min(ranks) < 2:
        raise ConfigError("ranks", min(ranks), "at least 2")
    records = _open_records(arguments, setting)
    model_dir = checkpoint_path()
    shape = whole_shape(ServeConfig(source=ModelSource(model=str(model_dir))))
    trace: Path | None = arguments.trace
    report: Path | None = arguments.report

    def on_trace(_num_ranks: int, layout: KvLayout, spans: SpansByRank) -> None:
        for path in (trace, None if report is None else report / _TRACE_NAME):
            if path is not None:
                write_traces(path, layout, spans)

    traffic = load_traffic(model_dir, 2 * setting.num_sessions, setting.longest)
    bench = Bench(model_dir, records, traffic, _tell, on_trace)
    with _ending_on_sigterm():
        for num_ranks in ranks:
            for _point in bench.run(num_ranks):
                if report is not None:
                    save_records(report / RECORDS_NAME, records)
                    write_report(report, records, shape)
    print_figures(figures(records, shape), arguments.json)
    for problem in records.problems:
        print(f"BAD {problem}", file=sys.stderr)
    return _EXIT_DISPROVED if records.problems else 0


def _setting(arguments: argparse.Namespace) -> Setting:
    lengths = tuple(arguments.lengths or (SHORT_LENGTHS if arguments.short else FULL_LENGTHS))
    if not min(lengths):
        raise ConfigError("lengths", 0, "at least 1")
    num_sessions = arguments.sessions
    if num_sessions is None:
        num_sessions = MIN_SESSIONS if arguments.short else sessions_for(lengths, arguments.pressure)
    return Setting(
        lengths=lengths,
        num_sessions=num_sessions,
        max_batch_tokens=arguments.max_batch_tokens,
        pressure=arguments.pressure,
    )


def _open_records(arguments: argparse.Namespace, setting: Setting) -> Records:
    """Those of the report's folder, which must be empty of them unless they are to be gone on with."""
    report: Path | None = arguments.report
    if report is None:
        if arguments.resume:
            raise ConfigError("resume", "no report", "--report DIR with the folder of the run to go on with")
        return Records(setting=setting)
    require_matplotlib()
    report.mkdir(parents=True, exist_ok=True)
    path = report / RECORDS_NAME
    if path.exists() and not arguments.resume:
        raise ConfigError("report", str(report), "a folder without records, or --resume to go on with them")
    return load_records(path, setting)


@contextmanager
def _ending_on_sigterm() -> Generator[None]:
    """End the ranks as after a Ctrl-C: a run of hours is stopped by whoever started it in the background."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
