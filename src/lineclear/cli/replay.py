"""`lineclear replay`: sends a trace's requests to a server at their times, and prints how it did."""

import argparse
import resource
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from lineclear.base.errors import ConfigError
from lineclear.cli.argument_types import count, finite_number, output_file
from lineclear.cli.exit_codes import EXIT_INTERRUPTED
from lineclear.evaluation.figures import print_figures
from lineclear.lab.files import TraceReader
from lineclear.lab.replay import Goal, Outcome, OutcomeFile, ReplayPlan, replay_figures, run_replay
from lineclear.lab.streams import parse_server
from lineclear.trace.prompts import MAX_TOKEN_ID, PromptBuilder
from lineclear.trace.requests import TracedRequest, fold_requests
from lineclear.trace.statistics import in_order

_EXIT_ERRORS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to replay, and against whom."""
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--against", required=True, metavar="URL", help="a server of /v1/completions")
    parser.add_argument("--model", default="lineclear-tiny", help="the model's name there (default %(default)s)")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument("--speed", type=finite_number, default=1.0, help="times the trace's own (default %(default)s)")
    parser.add_argument("--sessions", type=count, metavar="N", help="the first N sessions alone")
    parser.add_argument("--until", type=finite_number, metavar="S", help="the trace's first S seconds alone")
    parser.add_argument(
        "--tokens",
        type=count,
        nargs=2,
        default=(256, 1000),
        metavar=("FIRST", "LAST"),
        help="ids that prompts are made of (256 1000)",
    )
    parser.add_argument("--ttft-ms", type=finite_number, default=2000.0, help="of goodput (default %(default)s)")
    parser.add_argument("--tpot-ms", type=finite_number, default=50.0, help="of goodput (default %(default)s)")
    parser.add_argument(
        "--out", type=output_file, required=True, metavar="FILE", help="each outcome; a run with the same FILE goes on"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures to this file")


def run(arguments: argparse.Namespace) -> int:
    """Replay; the exit code says whether all requests got what they asked for."""
    first_token, last_token = arguments.tokens
    if not first_token < last_token <= MAX_TOKEN_ID:
        raise ConfigError("tokens", [first_token, last_token], f"two rising ids up to {MAX_TOKEN_ID}")
    if arguments.speed <= 0:
        raise ConfigError("speed", arguments.speed, "more than 0")
    server = parse_server(arguments.against, arguments.api_key)
    reader = TraceReader(arguments.trace)
    wanted = _wanted(in_order(fold_requests(reader.events())), arguments.sessions, arguments.until)
    if not wanted:
        raise ConfigError("trace", str(arguments.trace), "at least one request within --sessions and --until")
    kept = OutcomeFile(arguments.out, {each.arrived.request for each in wanted})
    known = {each.request for each in kept.outcomes}
    left = [each for each in wanted if each.arrived.request not in known]
    prompts = PromptBuilder(reader.header.block_len, first_token, last_token)
    plan = ReplayPlan(left, prompts, arguments.model, arguments.speed, wanted[0].arrived.at_s)
    _allow_many_connections()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(wanted), completed=len(known))

        def on_outcome(outcome: Outcome) -> None:
            kept.add(outcome)
            errors = sum(each.error is not None for each in kept.outcomes[-100:])
            progress.update(task, advance=1, description=f"{errors} errors in the last 100")

        is_whole = run_replay(plan, server, on_outcome)
    kept.close()
    print_figures(replay_figures(kept.outcomes, Goal(arguments.ttft_ms, arguments.tpot_ms)), arguments.json)
    if not is_whole:
        return EXIT_INTERRUPTED
    return _EXIT_ERRORS if any(each.error is not None for each in kept.outcomes) else 0


def _allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _wanted(requests: list[TracedRequest], num_sessions: int | None, until_s: float | None) -> list[TracedRequest]:
    if num_sessions is not None:
        names = dict.fromkeys(each.arrived.session for each in requests)
        first = set(list(names)[:num_sessions])
        requests = [each for each in requests if each.arrived.session in first]
    return [each for each in requests if until_s is None or each.arrived.at_s < until_s]
