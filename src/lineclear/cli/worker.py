"""`lineclear worker`: a worker process; internal, started by `lineclear serve`."""

import argparse

from lineclear.cli.child import WorkerStart, begin_child, reporting_failure
from lineclear.worker.process import run_worker


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Nothing: the start message has it all."""


def run(_arguments: argparse.Namespace) -> int:
    """Load the model and serve the gateway."""
    start, report = begin_child(WorkerStart)
    with reporting_failure(report):
        run_worker(start.config, start.seat, control_endpoint=start.control_endpoint, report=report)
    return 0
