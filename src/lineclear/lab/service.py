"""Starts a gateway and lab workers, one process each, and ends them."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from lineclear.base.errors import LineclearError
from lineclear.lab.plan import Cell

START_SECONDS = 120.0
END_SECONDS = 20.0


class ServiceError(LineclearError):
    """The service under test does not start, or not as it has to."""


@contextmanager
def lab_service(cell: Cell, options: Sequence[str], folder: Path, seed: int) -> Generator[str]:
    """Run the cell's workers, with its faults armed; yields the gateway's address.

    `folder` gets each process's output and what fires.
    Raises: ServiceError.
    """
    with ExitStack() as stack:
        control = _free_address()
        gateway = _start(
            stack, ["-m", "lineclear", "gateway", "--control", control, "--port", "0"], folder / "gateway.log"
        )
        url = _wait_for(gateway, folder / "gateway.log", r"gateway on (http://[^,\s]+)")[1]
        roles = [("prefill", f"p{idx}") for idx in range(cell.num_prefill)]
        decode = "decode" if cell.num_prefill else "colocated"
        roles += [(decode, f"d{idx}") for idx in range(cell.num_decode)]
        started: list[tuple[subprocess.Popen[bytes], Path]] = []
        for number, (role, worker_id) in enumerate(roles):
            command = ["-m", "lineclear.cli.lab_worker", "--arm", ",".join(cell.faults), "--fired", str(folder)]
            command += ["--seed", str(seed + number), "worker", "--join", control, "--role", role]
            command += ["--worker-id", worker_id, "--kv-sanitizer", cell.sanitizer, *options]
            log = folder / f"{worker_id}.log"
            started.append((_start(stack, command, log), log))
        for process, log in started:
            _wait_for(process, log, "joined")
        _wait_until_ready(url, len(roles), cell.num_prefill * cell.num_decode)
        yield url


def read_firings(folder: Path, faults: Sequence[str]) -> dict[str, int]:
    """How often each armed fault has fired, in all workers."""
    return {fault: sum(path.stat().st_size for path in folder.glob(f"*.{fault}")) for fault in faults}


def read_metrics(url: str) -> dict[str, float]:
    """What `/metrics` says, by name and labels."""
    lines = httpx.get(f"{url}/metrics", timeout=START_SECONDS).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def _start(stack: ExitStack, arguments: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT)  # noqa: S603
    stack.callback(_end, process)
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(process: "subprocess.Popen[bytes]", log: Path, pattern: str) -> re.Match[str]:
    deadline = time.monotonic() + START_SECONDS
    pause = threading.Event()
    while True:
        text = log.read_text(encoding="utf-8", errors="replace")
        if match := re.search(pattern, text):
            return match
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServiceError(f"{log.name}: it does not start:\n{text[-2000:]}")
        pause.wait(0.05)


def _wait_until_ready(url: str, num_workers: int, num_pairs: int) -> None:
    """Until all workers are up and every decode worker has all prefill instances."""
    deadline = time.monotonic() + START_SECONDS
    pause = threading.Event()
    while True:
        figures = read_metrics(url)
        up = sum(value for name, value in figures.items() if name.startswith("lineclear_worker_up{"))
        linked = sum(
            value
            for name, value in figures.items()
            if name.startswith("lineclear_handoff_peers{") and 'worker="d' in name
        )
        if up >= num_workers and linked >= num_pairs:
            return
        if time.monotonic() > deadline:
            raise ServiceError(f"only {up:g} of {num_workers} workers and {linked:g} of {num_pairs} links are there")
        pause.wait(0.1)


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"
