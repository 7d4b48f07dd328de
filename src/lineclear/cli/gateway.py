"""`lineclear gateway`: the gateway process, alone for workers that join it, or as a child of `lineclear serve`."""

import argparse
import signal

from lineclear.cli.announcer import authority
from lineclear.cli.child import GatewayStart, begin_child, reporting_failure, start_logging
from lineclear.cli.option_flags import add_option_flags, options_of, resolve_arguments
from lineclear.cli.serve import fit_checkpoint
from lineclear.cli.standalone import control_endpoint
from lineclear.gateway.process import run_gateway
from lineclear.transport.reports import GatewayListening, GatewayServing, Report

OPTIONS = options_of("source", "gateway", "routing", "guard", "link") - {"guard_detector", "guard_baselines"} | {
    *("max_waiting", "min_handoff_tokens", "drain_seconds", "log_level")
}
"""What a gateway reads."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where workers join, and what a gateway reads."""
    parser.add_argument(
        "--control",
        metavar="HOST:PORT",
        help="where workers join, without authentication: keep it on loopback or a private network",
    )
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)  # of `lineclear serve`
    add_option_flags(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Serve HTTP until told to drain."""
    if arguments.child is None:
        return _run_alone(arguments)
    start, report = begin_child(GatewayStart)
    with reporting_failure(report):
        return run_gateway(start.config, control_endpoint=start.control_endpoint, report=report)


def _run_alone(arguments: argparse.Namespace) -> int:
    config = fit_checkpoint(resolve_arguments(arguments)).config
    endpoint = control_endpoint("control", arguments.control)
    start_logging(config)

    def report(report: Report) -> None:
        match report:
            case GatewayListening(host, port):
                print(f"gateway on http://{authority(host, port)}, workers join {arguments.control}", flush=True)
            case GatewayServing(worker_ids, prefill_ids):
                print(f"workers: {_listed(worker_ids)}; prefill: {_listed(prefill_ids)}", flush=True)
            case _:
                pass

    stop_signals = (signal.SIGTERM, signal.SIGINT)
    return run_gateway(config, control_endpoint=str(endpoint), report=report, stop_signals=stop_signals)


def _listed(names: list[str]) -> str:
    return ", ".join(sorted(names)) or "none"
