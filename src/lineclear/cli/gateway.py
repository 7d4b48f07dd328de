"""`lineclear gateway`: the gateway process; internal, started by `lineclear serve`."""

import argparse

from lineclear.cli.child import GatewayStart, begin_child, reporting_failure
from lineclear.gateway.process import run_gateway


def add_arguments(_parser: argparse.ArgumentParser) -> None:
    """Nothing: the start message has it all."""


def run(_arguments: argparse.Namespace) -> int:
    """Serve HTTP until told to drain."""
    start, report = begin_child(GatewayStart)
    with reporting_failure(report):
        return run_gateway(start.config, control_endpoint=start.control_endpoint, report=report)
