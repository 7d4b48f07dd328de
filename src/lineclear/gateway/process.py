"""The gateway process: HTTP on one side, control links on the other, from the first line to the last request.

    listening ──▶ serving ──SIGTERM──▶ draining ──no request open, or time is up──▶ workers drained ──▶ closed (0)

While it drains, the gateway still answers: new requests get 503, probes see that it is not ready.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Collection, Generator
from pathlib import Path

import uvicorn
import uvloop

from lineclear.base.errors import ConfigError
from lineclear.config.components import ServeConfig
from lineclear.gateway.app import build_app
from lineclear.gateway.bodies import Bodies
from lineclear.gateway.connection import Connection
from lineclear.gateway.dispatch import Dispatcher
from lineclear.gateway.errors import UnavailableError
from lineclear.gateway.ledger import Ledger
from lineclear.gateway.metrics import GatewayMetrics, GatewaySnapshot
from lineclear.gateway.served_model import TextAssets, load_text_assets
from lineclear.gateway.serving import KEEP_ALIVE_SECONDS, Services
from lineclear.transport.endpoint import parse_endpoint
from lineclear.transport.reports import GatewayListening, GatewayServing, ReportSink

logger = logging.getLogger(__name__)

BACKLOG = 2048

WORKER_DRAIN_SECONDS = 2.0
"""What workers may take to end sequences that were cancelled: a step or two."""

SWITCH_SECONDS = 0.001
"""How long the event loop waits for a thread that prepares a prompt to let go of the interpreter, at each of its turns.
With Python's 5 ms, prompts of 300 kB kept one token in a thousand of other streams back for 60 to 110 ms, with this for
22 to 35 ms, on two cores that others used, too (`bench/bench_gateway.py`)."""

LAST_WORDS_SECONDS = 2
"""How long connections may take to send what is written when everything has ended."""


def run_gateway(
    config: ServeConfig,
    *,
    control_endpoint: str,
    report: ReportSink,
    stop_signals: Collection[signal.Signals] = (signal.SIGTERM,),
) -> int:
    """Serve until a stop signal, then drain; returns the exit code. A second signal ends the process at once.

    Raises:
        CheckpointError: The text side of the model cannot be loaded.
        ConfigError: The address cannot be listened on.
    """
    assets = load_text_assets(Path(config.source.model))
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve_until_signal(config, assets, control_endpoint, report, stop_signals))


async def _serve_until_signal(
    config: ServeConfig,
    assets: TextAssets,
    control_endpoint: str,
    report: ReportSink,
    stop_signals: Collection[signal.Signals],
) -> int:
    gateway = Gateway(config, assets, report)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for number in stop_signals:
            loop.remove_signal_handler(number)
        gateway.request_drain()

    for number in stop_signals:
        loop.add_signal_handler(number, stop)
    await gateway.serve(control_endpoint)
    return 0


class Gateway:
    """One gateway in a running event loop.

    Args:
        config: the whole configuration.
        assets: the text side of the model.
        report: told where the gateway listens and how many workers it has.
        keep_alive_seconds: silence after which a stream says that it is alive.
    """

    def __init__(
        self,
        config: ServeConfig,
        assets: TextAssets,
        report: ReportSink,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self._config = config
        self._report = report
        self._drain_requested = asyncio.Event()
        self._no_request_open = asyncio.Event()
        self._bodies = Bodies(config.gateway.max_body_bytes)
        self.dispatcher = Dispatcher(
            config, assets.model_digest, lambda ids, prefill_ids: report(GatewayServing(ids, prefill_ids))
        )
        self.ledger = Ledger(self._no_request_open.set)
        self.services = Services(
            dispatcher=self.dispatcher,
            ledger=self.ledger,
            metrics=GatewayMetrics(self._snapshot),
            assets=assets,
            bodies=self._bodies,
            served_model_name=config.gateway.served_model_name,
            session_headers=config.routing.session_header,
            num_holdback_tokens=config.guard.guard_holdback_tokens,
            keep_alive_seconds=keep_alive_seconds,
        )
        self._server = _Server(
            uvicorn.Config(
                build_app(self.services, config.gateway.api_key),
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=config.gateway.keep_alive_seconds,
                timeout_graceful_shutdown=LAST_WORDS_SECONDS,
            )
        )

    def request_drain(self) -> None:
        """Begin to drain; `serve` returns when it is done."""
        self._drain_requested.set()

    async def serve(self, control_endpoint: str) -> None:
        """Listen, serve, drain, close.

        Raises:
            ConfigError: An address cannot be listened on.
        """
        _quiet_server_log()
        gateway = self._config.gateway
        with _listen(gateway.host, gateway.port) as listener:
            await self._listen_for_workers(control_endpoint)
            serving = asyncio.create_task(self._server.serve(sockets=[listener]))
            await self._server.has_started.wait()
            self._report(GatewayListening(gateway.host, listener.getsockname()[1]))
            await self._drain_requested.wait()
            await self._drain()
            self._server.should_exit = True
            await serving
        await self.dispatcher.stop()
        self._bodies.close()
        self.ledger.check()

    async def _listen_for_workers(self, control_endpoint: str) -> None:
        try:
            await self.dispatcher.listen(parse_endpoint(control_endpoint))
        except OSError as error:
            allowed = f"an address that can be listened on ({error})"
            raise ConfigError("control", control_endpoint, allowed) from error

    async def _drain(self) -> None:
        self.dispatcher.begin_drain()
        if not await self._wait_until_empty(self._config.supervisor.drain_seconds):
            logger.warning("%d requests are cut off: the time to drain is up", self.ledger.num_open)
            self.dispatcher.fail_all(UnavailableError("the server is shutting down", None, "server_draining"))
            await self._wait_until_empty(LAST_WORDS_SECONDS)
        if not await self.dispatcher.questions.drain(WORKER_DRAIN_SECONDS):
            logger.warning("a worker did not drain in %s s", WORKER_DRAIN_SECONDS)

    async def _wait_until_empty(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.ledger.num_open:
                    self._no_request_open.clear()
                    await self._no_request_open.wait()
        except TimeoutError:
            return False
        return True

    def _snapshot(self) -> GatewaySnapshot:
        return GatewaySnapshot(self.ledger.statistics(), self.dispatcher.statistics(), self.dispatcher.workers)


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own, and with an event for its start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError("host:port", f"{host}:{port}", f"an address that can be listened on ({error})") from error
    listener.setblocking(False)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted connections inherit it
    return listener


def _quiet_server_log() -> None:
    """A stream that is cut on purpose is no error of ours; the request's own log line tells about it."""
    server_log = logging.getLogger("uvicorn.error")
    server_log.setLevel(logging.WARNING)
    server_log.addFilter(lambda record: "without completing response" not in record.getMessage())
