"""`lineclear judge RESULTS`: every answer of a run against the same request alone on a quiet server."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lineclear.base.errors import ConfigError
from lineclear.cli.argument_types import finite_number, output_file
from lineclear.cli.client import add_server_arguments, open_client, unreachable
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.lab.judging import DEFAULT_TIE_MARGIN, Judgement, Outcome
from lineclear.lab.reference import ServerReferences
from lineclear.lab.results import Result, read_results
from lineclear.lab.tribunal import Tally, judge_results, tally

EXIT_CORRUPTION = 1
EXIT_NOTHING_COMPARED = 3

TIMEOUT = httpx.Timeout(600, connect=10)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What was answered, and who is asked again."""
    parser.add_argument(
        "results", type=Path, metavar="RESULTS", help="JSON lines: id, request, text, error, known_answer"
    )
    parser.add_argument(
        "--tie-margin",
        type=finite_number,
        default=DEFAULT_TIE_MARGIN,
        metavar="NATS",
        help="tokens whose log-probabilities are closer may change places (default %(default)s)",
    )
    parser.add_argument("--judgements", type=output_file, metavar="FILE", help="also write each judgement, one a line")
    parser.add_argument(
        "--references", type=Path, metavar="FILE", help="keep what the server answered; a later run goes on with it"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")
    add_server_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Ask, judge, print; the exit code says whether an answer was corrupted."""
    if arguments.tie_margin < 0:
        raise ConfigError("tie-margin", arguments.tie_margin, "at least 0")
    if not arguments.results.is_file():
        raise ConfigError("RESULTS", str(arguments.results), "a file of results, one JSON object a line")
    results = list(read_results(arguments.results))
    judgements = _judge(arguments, results)
    for judgement in judgements:
        if judgement.is_anomaly:
            print(describe(judgement), flush=True)
    if arguments.judgements is not None:
        arguments.judgements.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in judgements))
    counted = tally(judgements)
    print_figures(figures(counted), arguments.json)
    if not counted.num_judged and not counted.num_known:
        print("lineclear: nothing was compared: no result is greedy and answered, here and alone", file=sys.stderr)
        return EXIT_NOTHING_COMPARED
    return EXIT_CORRUPTION if counted.num_by_outcome[Outcome.CORRUPTION] else 0


def describe(judgement: Judgement) -> str:
    """One line about an answer that is not as it has to be."""
    margin = "not among the likely ones" if judgement.margin is None else f"{judgement.margin:.3g} nats less likely"
    words = f"{judgement.request_id}: {judgement.outcome} after {judgement.differs_at} characters, {margin}"
    if judgement.garbling is not None:
        words += f"; garbled: {judgement.garbling!r}"
    if judgement.loop is not None:
        words += f"; repeats {judgement.loop!r}"
    if judgement.foreign is not None:
        words += f"; has text of request {judgement.foreign.donor_id}: {judgement.foreign.excerpt!r}"
    return words


def figures(counted: Tally) -> Iterator[Figure]:
    """What was counted, as figures."""
    yield Figure("answers", sum(counted.num_by_outcome.values()))
    for outcome, count in counted.num_by_outcome.items():
        yield Figure(f"answers_{outcome}", count)
    interval = counted.interval
    if interval is not None:
        corrupted = counted.num_by_outcome[Outcome.CORRUPTION]
        yield Figure("corrupted_in_10000", 10_000 * corrupted / counted.num_judged)
        yield Figure("corrupted_in_10000_low", 10_000 * interval.low)
        yield Figure("corrupted_in_10000_high", 10_000 * interval.high)
    yield Figure("garbled", counted.num_garbled)
    yield Figure("loops", counted.num_loops)
    yield Figure("foreign", counted.num_foreign)
    yield Figure("known_answers", counted.num_known)
    yield Figure("known_answers_right", counted.num_known_right)


def _judge(arguments: argparse.Namespace, results: list[Result]) -> list[Judgement]:
    console = Console(stderr=True)
    columns = (TextColumn("asking alone"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        open_client(arguments, TIMEOUT) as client,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("", total=len(results))
        references = ServerReferences(client, arguments.references, lambda: progress.advance(task))
        try:
            return list(judge_results(results, references, arguments.tie_margin))
        except httpx.TransportError as error:
            raise unreachable(client, error) from error
