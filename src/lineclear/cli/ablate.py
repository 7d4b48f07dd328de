"""`lineclear ablate PLAN.toml`: how many answers are corrupted with each fault, load and protection."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from lineclear.cli.argument_types import output_file
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.lab.cells import Ablation, CellOutcome
from lineclear.lab.plan import read_plan
from lineclear.lab.report import render_report
from lineclear.testing.faults.catalogue import FAULTS

EXIT_UNFIRED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The plan, and where everything goes."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="TOML: see examples/first-fault.toml")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="results and report.html; a run goes on there (default runs/PLAN)"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")


def run(arguments: argparse.Namespace) -> int:
    """Run the cells that are not there yet; the exit code says whether every armed fault has fired."""
    plan = read_plan(arguments.plan, FAULTS)
    folder = arguments.out or Path("runs") / arguments.plan.stem
    with _Shown() as shown:
        outcomes: list[CellOutcome] = []
        for outcome in Ablation(plan, folder, shown.on_progress).run():
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
            (folder / "report.html").write_text(render_report(plan, outcomes), encoding="utf-8")
            (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
    print_figures(_figures(outcomes), arguments.json)
    print(f"report: {folder / 'report.html'}", file=sys.stderr)
    return EXIT_UNFIRED if any(outcome.unfired for outcome in outcomes) else 0


class _Shown:
    """A bar on a terminal's standard error; elsewhere nothing."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    def on_progress(self, name: str, num_done: int, num_all: int) -> None:
        """Move the bar of what runs."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=num_all)
        self._progress.update(self._tasks[name], completed=num_done, visible=num_done < num_all)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _line(outcome: CellOutcome) -> str:
    low, high = outcome.exact_in_10000
    fired = ", ".join(f"{fault} {count}" for fault, count in outcome.firings.items()) or "nothing armed"
    unfired = "BAD " if outcome.unfired else ""
    return (
        f"{unfired}{outcome.key}: {outcome.num_corrupted} of {outcome.num_answers} corrupted "
        f"({outcome.in_10000:.1f} in 10,000, {low:.1f} to {high:.1f}); fired: {fired}"
    )


def _figures(outcomes: Sequence[CellOutcome]) -> Iterator[Figure]:
    for each in outcomes:
        low, high = each.exact_in_10000
        yield Figure(f"{each.key}_answers", each.num_answers)
        yield Figure(f"{each.key}_corrupted", each.num_corrupted)
        yield Figure(f"{each.key}_corrupted_in_10000", each.in_10000)
        yield Figure(f"{each.key}_corrupted_in_10000_low", low)
        yield Figure(f"{each.key}_corrupted_in_10000_high", high)
        yield Figure(f"{each.key}_corrupted_alone", each.num_corrupted_alone)
        yield Figure(f"{each.key}_throughput", each.answers_per_second, "answers/s")
        if each.seconds_p95 is not None:
            yield Figure(f"{each.key}_seconds_p95", each.seconds_p95, "s")
        for fault, count in each.firings.items():
            yield Figure(f"{each.key}_fired_{fault}", count)
        for kind, count in each.sanitizer_faults.items():
            yield Figure(f"{each.key}_sanitizer_{kind}", count)
