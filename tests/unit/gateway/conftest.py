"""A gateway in a thread, over real sockets, with workers that tests script."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import httpx
import pytest
import uvloop

from lineclear.config.components import (
    EngineConfig,
    GatewayConfig,
    GuardConfig,
    LinkConfig,
    RoutingConfig,
    ServeConfig,
    SupervisorConfig,
)
from lineclear.gateway.process import Gateway
from lineclear.gateway.served_model import SamplingDefaults, TextAssets
from lineclear.gateway.template import ChatTemplate
from lineclear.gateway.tokenization import Tokenization
from lineclear.transport.reports import GatewayListening, GatewayServing, Report
from tests.unit.gateway.scripted_worker import WAIT_SECONDS, ScriptedWorker
from tests.unit.gateway.tiny_text import TEMPLATE, build_tokenizer

_ROUTING = {each.name for each in fields(RoutingConfig)}
_GUARD = {each.name for each in fields(GuardConfig)}


@pytest.fixture(scope="session")
def tokenization() -> Tokenization:
    return Tokenization(build_tokenizer())


@pytest.fixture(scope="session")
def assets(tokenization: Tokenization) -> TextAssets:
    template = ChatTemplate(TEMPLATE, {}, tokenization.control_literals)
    return TextAssets(tokenization, template, SamplingDefaults())


class RunningGateway:
    """A gateway in a thread of its own."""

    def __init__(
        self, config: ServeConfig, assets: TextAssets, control_endpoint: str, keep_alive_seconds: float
    ) -> None:
        self.control_endpoint = control_endpoint
        self.assets = assets
        self.reports: queue.Queue[Report] = queue.Queue()
        self.workers: list[ScriptedWorker] = []
        self._config = config
        self._keep_alive_seconds = keep_alive_seconds
        self._thread = threading.Thread(target=self._run, name="gateway")
        self._thread.start()
        listening = self.reports.get(timeout=WAIT_SECONDS)
        assert isinstance(listening, GatewayListening)
        self.port = listening.port
        self.url = f"http://127.0.0.1:{listening.port}"
        self.client = httpx.Client(base_url=self.url, timeout=WAIT_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.gateway = Gateway(self._config, self.assets, self.reports.put, self._keep_alive_seconds)
        await self.gateway.serve(self.control_endpoint)

    def start_worker(self, **options: object) -> ScriptedWorker:
        worker = ScriptedWorker(self.control_endpoint, **options)
        self.workers.append(worker)
        self.wait_for_workers(sum(each._thread.is_alive() for each in self.workers))
        return worker

    def wait_for_workers(self, num_workers: int) -> None:
        while True:
            report = self.reports.get(timeout=WAIT_SECONDS)
            if isinstance(report, GatewayServing) and len(report.worker_ids) == num_workers:
                return

    def on_loop(self, work: Callable[[], object]) -> object:
        """Run something on the gateway's loop and return what it returns."""

        async def run() -> object:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_SECONDS)

    def wait_until(self, is_met: Callable[[], bool]) -> None:
        """Wait for a condition on the gateway's state, looked at on its loop."""

        async def wait() -> None:
            async with asyncio.timeout(WAIT_SECONDS):
                while not is_met():  # noqa: ASYNC110 - any state may be waited for
                    await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(wait(), self.loop).result()

    def begin_drain(self) -> None:
        self.loop.call_soon_threadsafe(self.gateway.request_drain)

    def join(self) -> None:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.client.close()
        if self._thread.is_alive():
            self.begin_drain()
        self.join()
        for worker in self.workers:
            worker.kill()
        assert self.gateway.ledger.num_open == 0
        self.gateway.ledger.check()


@pytest.fixture
def start_gateway(tmp_path: Path, assets: TextAssets) -> Iterator[Callable[..., RunningGateway]]:
    """Starts gateways; each is drained at the end, and every request must have had its ending."""
    running: list[RunningGateway] = []

    def start(keep_alive_seconds: float = 60.0, text: TextAssets = assets, **options: object) -> RunningGateway:
        names = set(options)
        routing = {name: options.pop(name) for name in names & _ROUTING}
        guard = {name: options.pop(name) for name in names & _GUARD}
        config = ServeConfig(
            engine=EngineConfig(max_waiting=int(str(options.pop("max_waiting", 4)))),
            link=LinkConfig(heartbeat_seconds=0.5),
            supervisor=SupervisorConfig(drain_seconds=float(str(options.pop("drain_seconds", 5.0)))),
            gateway=GatewayConfig(port=0, **options),
            routing=RoutingConfig(**routing),
            guard=GuardConfig(**guard),
        )
        assert names >= set(options)
        endpoint = f"unix:{tmp_path}/control-{len(running)}"
        running.append(RunningGateway(config, text, endpoint, keep_alive_seconds))
        return running[-1]

    yield start
    for gateway in running:
        gateway.close()
