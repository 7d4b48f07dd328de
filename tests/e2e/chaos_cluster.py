"""A gateway and lab workers that can be stopped, killed, cut off and started again, in one namespace or in two."""

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from tests.e2e.faults import FaultFolder
from tests.e2e.histories import Question
from tests.e2e.hosts import OtherHost
from tests.e2e.processes import PATIENCE_SECONDS, Program, running

HEARTBEAT_SECONDS = 0.2
PEER_TIMEOUT_SECONDS = 4.0
MAX_BATCH_TOKENS = 256
"""Short steps: a busy worker is no silent one, and prompts are written in several chunks."""
POOL_TOKENS = 3072
"""A few prompts fill it, so that blocks are used again at once."""

CONTROL_PORT = 7178
DECODES = ("d0", "d1")
PREFILL = "p0"


class ChaosCluster:
    """Two decode workers and a prefill instance.

    Args:
        there: the workers that are on the other host, if there is one.
        min_handoff_tokens: shorter prompts are computed by decode.
    """

    def __init__(
        self,
        stack: ExitStack,
        mover: str,
        *,
        host: OtherHost | None = None,
        there: tuple[str, ...] = (PREFILL,),
        is_safe: bool = True,
        min_handoff_tokens: int = 16,
        decodes: tuple[str, ...] = DECODES,
        pool_tokens: int = POOL_TOKENS,
    ) -> None:
        self.host = host
        self.faults = FaultFolder(folder := Path(stack.enter_context(TemporaryDirectory())))
        self._stack = stack
        self._there = there if host is not None else ()
        self.decodes = decodes
        self.workers: dict[str, Program] = {}
        self._control = _free_endpoint() if host is None else f"{host.here}:{CONTROL_PORT}"
        links = ("--heartbeat-seconds", str(HEARTBEAT_SECONDS), "--peer-timeout-seconds", str(PEER_TIMEOUT_SECONDS))
        self._lab = (
            *("-m", "tests.e2e.lab_worker", *(() if is_safe else ("--unsafe",)), "--faults", str(folder), "worker"),
            *("--join", self._control, "--mover", mover, "--max-total-tokens", str(pool_tokens)),
            *("--min-handoff-tokens", str(min_handoff_tokens), "--no-prefix-cache", *links),
            *("--max-batch-tokens", str(MAX_BATCH_TOKENS)),
        )
        gateway = ("-m", "lineclear", "gateway", "--control", self._control, "--port", "0", *links)
        self.gateway = stack.enter_context(running(gateway))
        for worker_id in (*decodes, PREFILL):
            self.start(worker_id)
        self.url = self.gateway.wait_for(r"gateway on (http://[^,]+)")[1]
        self.wait_until_connected()

    def start(self, worker_id: str) -> None:
        """Start a worker, or start it again."""
        role = "prefill" if worker_id == PREFILL else "decode"
        is_there = self.host is not None and worker_id in self._there
        within = self.host.within if is_there else ()
        command = (*self._lab, "--role", role, "--worker-id", worker_id)
        devices = {"UCX_NET_DEVICES": ",".join(("lo", *self._devices(is_there=is_there)))}
        self.workers[worker_id] = self._stack.enter_context(running(command, devices, within=within))

    def _devices(self, *, is_there: bool) -> tuple[str, ...]:
        """What NIXL may use beside loopback: not what other tests make and take away meanwhile."""
        if self.host is None:
            return ()
        return (self.host.their_device if is_there else self.host.our_device,)

    def signal(self, worker_id: str, number: int) -> None:
        """Send it a signal."""
        os.kill(self.workers[worker_id].process.pid, number)

    def revive(self, worker_id: str) -> bool:
        """Start it again if it has ended; whether it had."""
        if self.workers[worker_id].process.poll() is None:
            return False
        self.start(worker_id)
        return True

    def wait_until_connected(self) -> None:
        """Until every decode worker can order from the prefill instance, or says that it never will again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            for worker_id in self.workers:
                self.revive(worker_id)
            figures = self.figures()
            wanted = dict.fromkeys(self.decodes, 1) | {PREFILL: len(self.decodes)}
            if all(figures.get(f'lineclear_handoff_peers{{worker="{each}"}}') == num for each, num in wanted.items()):
                return
            assert time.monotonic() < deadline, f"not connected again:\n{self.text()}"
            time.sleep(0.05)

    def figures(self) -> dict[str, float]:
        """The metrics of now, of those workers that the gateway knows."""
        lines = httpx.get(f"{self.url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def num_handed_over(self, worker_id: str) -> float:
        """Handoffs that a worker has brought to a good end in this life."""
        return self.figures().get(f'lineclear_handoffs_total{{outcome="done",worker="{worker_id}"}}', 0.0)

    def blocks_quarantined(self) -> float:
        """Of all decode workers."""
        return _sum_of(self.figures(), "lineclear_handoff_blocks_quarantined{")

    def faults_left(self) -> list[str]:
        """What is not as it was before the first request, once everything has settled."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        names = ("lineclear_handoff_open{", "lineclear_requests_open", "lineclear_worker_blocks_held{")
        names += ("lineclear_handoff_blocks_quarantined{", "lineclear_worker_blocks_quarantined{")
        while True:
            figures = self.figures()
            left = [f"{name} {value:g}" for name, value in figures.items() if name.startswith(names) and value]
            if not left:
                break
            if time.monotonic() > deadline:
                return left
            time.sleep(0.1)
        checked = httpx.get(f"{self.url}/invariants", timeout=PATIENCE_SECONDS)
        return [] if checked.status_code == 200 and checked.json()["ok"] else [checked.text]

    def text(self) -> str:
        """What everybody has printed."""
        programs = {"gateway": self.gateway, **self.workers}
        return "\n".join(f"--- {name}\n{program.text}" for name, program in programs.items())


@contextmanager
def other_host() -> Iterator[OtherHost]:
    """Another host for the length of a block.

    Raises:
        OSError, CalledProcessError: This machine, or this user, cannot.
    """
    host = OtherHost()
    try:
        yield host
    finally:
        host.remove()


def expected_tokens(*questions: Question) -> list[list[list[str]]]:
    """What one process answers to each, undisturbed, one prompt at a time."""
    serve = ("-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", "32768", "--colocated")
    with (
        running(serve) as server,
        httpx.Client(base_url=server.wait_for(r"ready on (http://\S+)")[1], timeout=PATIENCE_SECONDS) as http,
    ):

        def answer(question: Question, prompt_idx: int) -> list[str]:
            body = question.body(prompt_idx) | {"stream": False}
            return _tokens(http.post("/v1/completions", json=body))

        return [[answer(each, idx) for idx in range(len(each.prompts))] for each in questions]


def continue_all(cluster: ChaosCluster) -> None:
    """Nothing stays stopped, whatever a test has left behind."""
    for program in cluster.workers.values():
        if program.process.poll() is None:
            program.signal(signal.SIGCONT)


def _tokens(response: httpx.Response) -> list[str]:
    return response.json()["choices"][0]["logprobs"]["tokens"]


def _sum_of(figures: dict[str, float], beginning: str) -> float:
    return sum(value for name, value in figures.items() if re.match(re.escape(beginning), name))


def _free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"
