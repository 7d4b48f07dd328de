"""`lineclear worker`: a worker process; internal, started by `lineclear serve`."""

import argparse

from lineclear.cli.child import WorkerStart, begin_child, reporting_failure
from lineclear.worker.process import run_worker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A name, for whoever lists processes: the start message has all the rest."""
    parser.add_argument("name", nargs="?", help="what the worker is called")


def run(_arguments: argparse.Namespace) -> int:
    """Load the model and serve the gateway."""
    start, report = begin_child(WorkerStart)
    with reporting_failure(report):
        run_worker(start.config, start.seat, control_endpoint=start.control_endpoint, report=report)
    return 0
