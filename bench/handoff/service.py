"""A gateway and lab workers, started one by one as an operator does, and clients that measure."""

import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.processes import Program, running

FIRST_TOKEN_ID, LAST_TOKEN_ID = 300, 2000
"""Ordinary tokens of the bundled model."""

PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Answer:
    """When a client had what, in seconds since it asked."""

    ttft_seconds: float
    seconds: float


@dataclass
class DecodeStream:
    """A sequence that decodes until it is enough."""

    prompt: list[int]
    max_tokens: int
    begun: threading.Event = field(default_factory=threading.Event)
    enough: threading.Event = field(default_factory=threading.Event)
    times: list[float] = field(default_factory=list[float])
    """When tokens came."""

    def longest_pause_seconds(self, since: float) -> float:
        """The longest time between two arrivals of tokens, the later one after `since`."""
        return max((later - earlier for earlier, later in pairwise(self.times) if later >= since), default=0.0)


class Service:
    """What is asked, and looked at from outside."""

    def __init__(self, url: str, pids: dict[str, int]) -> None:
        self._http = httpx.Client(base_url=url, timeout=PATIENCE_SECONDS)
        self.url = url
        self.pids = pids
        """Of `gateway`, `decode` and, where there is one, `prefill`."""

    def ask(self, prompt: Sequence[int], max_tokens: int = 1) -> Answer:
        """Ask once, and wait for the end."""
        started = time.perf_counter()
        first: float | None = None
        body = completion_body(prompt, max_tokens) | {"stream": True}
        with self._http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if first is None and line.startswith("data: {"):
                    first = time.perf_counter() - started
        seconds = time.perf_counter() - started
        return Answer(seconds if first is None else first, seconds)

    def decode(self, stream: "DecodeStream") -> None:
        """Ask for many tokens, note when some come, and leave when it is enough."""
        body = completion_body(stream.prompt, stream.max_tokens) | {"stream": True}
        with self._http.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    stream.times.append(time.perf_counter())
                    stream.begun.set()
                if stream.enough.is_set():
                    return

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time of each process so far, all its threads."""
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()}

    def close(self) -> None:
        """End the client's connections."""
        self._http.close()


@contextmanager
def lab_service(
    *,
    lab: Sequence[str] = (),
    options: Sequence[str] = (),
    prefills: bool = True,
    observed: Path | None = None,
    counted: Path | None = None,
) -> Iterator[Service]:
    """Run a gateway and a decode worker, and a prefill instance unless decode computes everything itself.

    Args:
        lab: options of `lab_worker`.
        options: of both workers.
        prefills: whether there is a prefill instance.
        observed: a folder for `decode.jsonl` and `prefill.jsonl`.
        counted: a folder for what the desks take, `decode` and `prefill`.
    """
    with ExitStack() as stack:
        control = f"127.0.0.1:{_free_port()}"
        gateway = stack.enter_context(
            running(["-m", "lineclear", "gateway", "--control", control, "--port", "0", "--log-level", "error"])
        )
        url = gateway.wait_for(r"gateway on (http://[^,]+)")[1]
        programs: dict[str, Program] = {"gateway": gateway}
        for role in ("decode", "prefill") if prefills else ("decode",):
            command = ["-m", "bench.handoff.lab_worker", *lab]
            command += [] if observed is None else ["--observe", str(observed / f"{role}.jsonl")]
            command += [] if counted is None else ["--desk-cpu", str(counted / role)]
            command += ["worker", "--join", control]
            command += ["--role", role, "--worker-id", role, "--log-level", "error", *options]
            programs[role] = stack.enter_context(running(command))
            programs[role].wait_for("joined")
        gateway.wait_for("workers: decode; prefill: prefill" if prefills else "workers: decode")
        service = Service(url, {name: program.process.pid for name, program in programs.items()})
        stack.callback(service.close)
        yield service


def completion_body(prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
    """A greedy request of exactly so many tokens."""
    return {"prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def prompts(seed: int, lens: Sequence[int]) -> list[list[int]]:
    """Prompts that share nothing, of so many tokens each."""
    dice = random.Random(seed)
    return [[dice.randrange(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(length)] for length in lens]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its present threads, from the kernel's scheduler."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def metrics(url: str) -> dict[str, float]:
    """What `/metrics` says, by name and labels."""
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
