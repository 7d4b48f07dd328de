"""`lineclear prove`: that what Lineclear promises holds, and what happens when a guard is taken out.

`prove handoff` explores every interleaving of the production machines: bounded, or with `--full` for hours.
`prove tiers` compares the tokens of thousands of requests with and without tiers, under random delays of copies, and
kills writers of the disk. `prove sanitizer` plants faults of KV, which are to be found, and runs clean requests, in
which nothing is. `prove transcripts` writes what the machines of the handoff do in words.
"""

import argparse
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lineclear.cli import prove_sanitizer, prove_tiers
from lineclear.cli.argument_types import output_file
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.testing.handoff.catalogue import BOUNDED, FULL
from lineclear.testing.handoff.controls import HARMLESS, MUST_BE_FOUND
from lineclear.testing.handoff.proof import Finding, OnProgress, explore_controls, explore_scenarios
from lineclear.testing.handoff.transcripts import write_transcripts
from lineclear.testing.handoff.words import say_script

_EXIT_DISPROVED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to prove, and how much of it."""
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", required=True)
    handoff = subjects.add_parser("handoff", help="explore the handoff and its negative controls")
    handoff.add_argument("--full", action="store_true", help="every scenario: millions of states, hours on one core")
    handoff.add_argument("--scripts", action="store_true", help="print the shortest failing script of every control")
    handoff.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    tiers = subjects.add_parser("tiers", help="compare tokens with and without cache tiers, under jitter and kills")
    tiers.add_argument("--full", action="store_true", help="2,000 requests and 200 kills: half an hour on two cores")
    tiers.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    sanitizer = subjects.add_parser(
        "sanitizer", help="plant faults of KV, and look whether they and no others are found"
    )
    sanitizer.add_argument("--full", action="store_true", help="10,000 clean requests: half an hour on one core")
    sanitizer.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    transcripts = subjects.add_parser("transcripts", help="write the transcripts of the handoff")
    transcripts.add_argument(
        "--directory", type=Path, default=Path("tests/transcripts"), help="where to (default %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Explore or write; the exit code says whether everything was as it must be."""
    if arguments.subject == "transcripts":
        write_transcripts(arguments.directory)
        return 0
    if arguments.subject == "tiers":
        return prove_tiers.run(is_full=arguments.full, path=arguments.json)
    if arguments.subject == "sanitizer":
        return prove_sanitizer.run(is_full=arguments.full, path=arguments.json)
    scenarios = FULL if arguments.full else BOUNDED
    with _progress() as on_progress:
        explored = _show(explore_scenarios(scenarios, on_progress), with_scripts=False)
        harmless = _show(explore_controls(HARMLESS, on_progress), with_scripts=False)
        controls = _show(explore_controls(MUST_BE_FOUND, on_progress), with_scripts=arguments.scripts)
    figures = [
        Figure("states", sum(finding.exploration.num_states for finding in explored)),
        Figure("violations", sum(not finding.is_as_expected for finding in explored + harmless)),
        Figure("controls_found", sum(finding.is_as_expected for finding in controls)),
        Figure("controls", len(controls)),
    ]
    print_figures(figures, arguments.json)
    return 0 if all(finding.is_as_expected for finding in explored + harmless + controls) else _EXIT_DISPROVED


def _show(findings: Iterable[Finding], *, with_scripts: bool) -> list[Finding]:
    shown: list[Finding] = []
    for finding in findings:
        found = finding.exploration
        outcome = found.broken or "nothing wrong"
        size = f"{found.num_states} states, {found.num_moves} moves, depth {found.depth}"
        print(f"{'ok ' if finding.is_as_expected else 'BAD'} {finding.name}: {outcome} ({size})", flush=True)
        if found.script and (with_scripts or not finding.is_as_expected):
            print("\n".join(f"    {line}" for line in say_script(found.script, found.broken)), flush=True)
        shown.append(finding)
    return shown


@contextmanager
def _progress() -> Generator[OnProgress]:
    """Shows on a terminal's standard error what is explored; elsewhere nothing."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda name, num_states: progress.update(task, description=f"{name}: {num_states:,} states")
