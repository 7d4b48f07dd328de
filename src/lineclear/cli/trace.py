"""`lineclear trace`: imports traces of public formats, and prints and draws figures of a trace."""

import argparse
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lineclear.base.errors import ConfigError
from lineclear.cli.argument_types import count, finite_number, output_file
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.lab.imports import FORMATS, ImportPlan, OnProgress, import_trace
from lineclear.lab.plots import draw_summary, require_matplotlib
from lineclear.lab.summary import DEFAULT_CAPACITIES, summarize

_EXIT_BAD_ROWS = 1
_PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to import, or to look at."""
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    imports = subjects.add_parser("import", help="write a trace from a public format")
    imports.add_argument("source", type=Path, metavar="SOURCE", help="a file, a .gz, a .tar.*, or a folder of them")
    imports.add_argument("--format", choices=FORMATS, required=True, help="%(choices)s")
    imports.add_argument("--out", type=output_file, required=True, metavar="TRACE", help="the trace; .gz compresses it")
    imports.add_argument("--rows", type=count, metavar="N", help="the first N rows alone: sessions, or requests")
    imports.add_argument(
        "--stagger-s",
        type=finite_number,
        default=0.0,
        help="seconds from one session's start to the next, where the format does not tell (default %(default)s)",
    )
    imports.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    stats = subjects.add_parser("stats", help="print lengths, hits by capacity, concurrency, new tokens per turn")
    stats.add_argument("trace", type=Path, metavar="TRACE")
    stats.add_argument(
        "--capacities", type=count, nargs="+", metavar="TOKENS", help="of the prefix caches whose hits are computed"
    )
    stats.add_argument("--plot", type=output_file, metavar="FILE", help="also draw them: .png, .svg or .pdf")
    stats.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")


def run(arguments: argparse.Namespace) -> int:
    """Import or summarize; the exit code says whether every row was used."""
    return _run_import(arguments) if arguments.subject == "import" else _run_stats(arguments)


def _run_import(arguments: argparse.Namespace) -> int:
    if arguments.stagger_s < 0:
        raise ConfigError("stagger_s", arguments.stagger_s, "at least 0")
    plan = ImportPlan(arguments.source, arguments.format, arguments.rows, arguments.stagger_s)
    with _progress() as on_progress:
        done = import_trace(plan, arguments.out, _tell, on_progress)
    figures = [
        Figure("rows", done.num_rows),
        Figure("bad_rows", done.num_bad_rows),
        Figure("requests", done.num_requests),
    ]
    print_figures(figures, arguments.json)
    return _EXIT_BAD_ROWS if done.num_bad_rows else 0


def _run_stats(arguments: argparse.Namespace) -> int:
    plot: Path | None = arguments.plot
    if plot is not None:
        require_matplotlib("plot")
        if plot.suffix not in _PLOT_SUFFIXES:
            raise ConfigError("plot", str(plot), f"a name that ends in {', '.join(_PLOT_SUFFIXES)}")
    _, summary = summarize(arguments.trace, arguments.capacities or DEFAULT_CAPACITIES)
    print_figures(summary.figures(), arguments.json)
    if plot is not None:
        draw_summary(plot, summary)
    return 0


def _tell(what: str) -> None:
    print(f"bad row: {what}", file=sys.stderr, flush=True)


@contextmanager
def _progress() -> Generator[OnProgress]:
    """Shows on a terminal's standard error how far an import is; elsewhere nothing."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda number, rows: progress.update(task, description=f"pass {number} of 2: {rows:,} rows")
