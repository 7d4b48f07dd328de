"""The real supervisor over stand-ins for its three processes, which end as they are told to.

Run with the environment variables STAND_IN_GATEWAY, STAND_IN_DECODE and STAND_IN_PREFILL: what each does.
"""

import asyncio
import dataclasses
import os
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from lineclear.base.errors import ConfigError, LineclearError
from lineclear.cli.announcer import Announcer
from lineclear.cli.child import GatewayStart, WorkerStart, begin_child, reporting_failure
from lineclear.cli.supervisor import Supervisor
from lineclear.config.components import LinkConfig, ServeConfig, SupervisorConfig
from lineclear.protocol.wire import ModelFacts
from lineclear.transport.reports import GatewayListening, GatewayServing, Loading, WorkerReady

FACTS = ModelFacts(
    name="stand-in",
    vocab_size=8,
    max_model_len=64,
    eos_token_ids=[7],
    block_size=4,
    num_blocks=16,
    draft_tokens=3,
    max_running=2,
)


def gateway(behaviour: str) -> None:
    start, report = begin_child(GatewayStart)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else lambda *_: sys.exit(0))
    signal.signal(signal.SIGUSR1, lambda *_: report(GatewayServing([])))
    if behaviour == "fail":
        with reporting_failure(report):
            raise ConfigError("port", 4242, "a port that is free")
    report(GatewayListening("127.0.0.1", start.config.gateway.port or 4242))
    report(GatewayServing(["decode-0"], ["prefill-0"]))
    while True:
        signal.pause()


def worker(behaviour: str) -> None:
    start, report = begin_child(WorkerStart)
    if behaviour == "crash":
        sys.exit(1)
    if behaviour == "refuse":
        sys.exit(2)
    if behaviour == "babble" and start.seat.life == 1:
        report("hello")  # pyright: ignore[reportArgumentType]
        signal.pause()
    report(Loading("loading a model"))
    while behaviour == "load":
        report(Loading("still loading"))
    report(WorkerReady(FACTS, 0.0))
    signal.pause()


def service() -> int:
    limits = SupervisorConfig(max_restarts=2, restart_backoff_seconds=0.01, drain_seconds=3600.0)
    link = LinkConfig(heartbeat_seconds=0.01, peer_timeout_seconds=0.1)
    config = ServeConfig(supervisor=limits, link=link)
    config = dataclasses.replace(config, gateway=dataclasses.replace(config.gateway, port=0))
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(
            config,
            Announcer(config, Console()),
            Path(folder),
            program=(sys.executable, __file__),
        )
        try:
            return asyncio.run(supervisor.run())
        except LineclearError as error:
            print(f"lineclear: error: {error}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["gateway", "--child", "gateway"]:
            gateway(os.environ.get("STAND_IN_GATEWAY", ""))
        case ["worker", "--child", "decode-0"]:
            worker(os.environ.get("STAND_IN_DECODE", ""))
        case ["worker", "--child", "prefill-0"]:
            worker(os.environ.get("STAND_IN_PREFILL", ""))
        case _:
            sys.exit(service())
