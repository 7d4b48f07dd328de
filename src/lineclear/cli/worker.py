"""`lineclear worker`: a worker process, alone and joining a gateway, or as a child of `lineclear serve`."""

import argparse
import os
import platform
import signal
import time

from lineclear.base.errors import ConfigError
from lineclear.cli.child import WorkerStart, begin_child, reporting_failure, start_logging
from lineclear.cli.option_flags import add_option_flags, options_of, resolve_arguments
from lineclear.cli.serve import fit_checkpoint
from lineclear.cli.standalone import Stop, control_endpoint
from lineclear.config.components import ServeConfig
from lineclear.protocol.roles import Role
from lineclear.transport.endpoint import TcpEndpoint
from lineclear.transport.link import address_towards
from lineclear.transport.reports import Loading, Report, WorkerReady
from lineclear.worker.making import AS_SHIPPED, WorkerMaking
from lineclear.worker.process import run_worker
from lineclear.worker.seat import Seat

_GUARD = frozenset({"guard", "guard_detector", "guard_baselines"})

OPTIONS = (options_of("source", "engine", "cache", "handoff", "ranks", "link") | _GUARD | {"log_level"}) - {
    "max_waiting",
    "colocated",
    "prefill",
    "decode",
}
"""What a worker reads."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to join and as what, and what a worker reads."""
    parser.add_argument("--join", metavar="HOST:PORT", help="the gateway's --control")
    roles = "|".join(Role)
    parser.add_argument("--role", metavar=roles, help=f"what it does with prompts. Default: {Role.COLOCATED}.")
    parser.add_argument("--worker-id", metavar="TEXT", help="its name. Default: made of role, host and process id.")
    parser.add_argument(
        "--peer-host",
        metavar="HOST",
        help="prefill: where decode workers reach it. Default: the address that leads to the gateway.",
    )
    parser.add_argument(
        "--cp-rank", metavar="N", help="prefill, with --cp: which of the instance's processes this is. Default: 0."
    )
    parser.add_argument(
        "--cp-leader",
        metavar="HOST:PORT",
        help="prefill, with --cp: where the process with --cp-rank 0 listens for the others.",
    )
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)  # of `lineclear serve`
    add_option_flags(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Load the model and serve the gateway."""
    if arguments.child is None:
        return run_alone(arguments)
    start, report = begin_child(WorkerStart)
    with reporting_failure(report), Stop((signal.SIGTERM,)) as stop:
        run_worker(start.config, start.seat, control_endpoint=start.control_endpoint, report=report, leave=stop)
    return 0


def run_alone(arguments: argparse.Namespace, making: WorkerMaking = AS_SHIPPED) -> int:
    """Serve a gateway somewhere else; `making` is for the lab."""
    config = fit_checkpoint(resolve_arguments(arguments)).config
    role = _role(arguments.role)
    _check_ranks_are_of_prefill(role, config, arguments)
    rank = _rank(arguments.cp_rank, role, config)
    rank_endpoint = str(control_endpoint("cp_leader", arguments.cp_leader)) if _has_ranks(role, config) else ""
    gateway = control_endpoint("join", arguments.join)
    start_logging(config)
    worker_id = arguments.worker_id or f"{role}-{platform.node()}-{os.getpid()}"
    life = time.time_ns() // 1_000_000  # one that is started again under its name has a larger one
    peer_host = arguments.peer_host or address_towards(gateway)
    peer_endpoint = str(TcpEndpoint(peer_host, 0)) if role is Role.PREFILL else ""

    def report(report: Report) -> None:
        match report:
            case Loading(stage):
                print(f"{worker_id}: {stage}", flush=True)
            case WorkerReady():
                print(f"{worker_id}: joined {arguments.join} as {role}", flush=True)
            case _:
                pass

    with Stop((signal.SIGTERM, signal.SIGINT)) as stop:
        seat = Seat(
            worker_id,
            life,
            role,
            peer_endpoint,
            rank=rank,
            num_ranks=config.ranks.cp if role is Role.PREFILL else 1,
            rank_endpoint=rank_endpoint,
        )
        run_worker(config, seat, control_endpoint=str(gateway), report=report, leave=stop, making=making)
    print(f"{worker_id}: left", flush=True)
    return 0


def _has_ranks(role: Role, config: ServeConfig) -> bool:
    return role is Role.PREFILL and config.ranks.cp > 1


def _check_ranks_are_of_prefill(role: Role, config: ServeConfig, arguments: argparse.Namespace) -> None:
    if role is Role.PREFILL:
        return
    if config.ranks.cp > 1:
        raise ConfigError("cp", config.ranks.cp, f"1 with --role {role}: only prefill instances have several processes")
    for name in ("cp_leader", "peer_host"):
        if (value := getattr(arguments, name)) is not None:
            raise ConfigError(name, value, f"none with --role {role}: only prefill instances are reached there")


def _rank(text: str | None, role: Role, config: ServeConfig) -> int:
    if text is None:
        return 0
    num_ranks = config.ranks.cp if role is Role.PREFILL else 1
    if not text.isascii() or not text.isdigit() or int(text) >= num_ranks:
        raise ConfigError("cp_rank", text, f"0 to {num_ranks - 1}, with --role prefill and --cp {config.ranks.cp}")
    return int(text)


def _role(text: str | None) -> Role:
    try:
        return Role(text or Role.COLOCATED)
    except ValueError:
        raise ConfigError("role", text, f"one of {', '.join(Role)}") from None
