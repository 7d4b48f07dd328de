"""Measures what long prompts in preparation do to the tokens of other streams.

A worker that computes nothing sends each stream a token every so many milliseconds. The figures are by how much later
than that a client saw its next token, without and with others whose long prompts are rendered and tokenized meanwhile.
Gateway, worker, load and clients are processes of their own; on a machine with fewer free cores than that, the figures
hold what they take from each other, too: compare the two.

    python -m bench.bench_gateway [--streams N] [--seconds N] [--interval-ms N] [--prompt-bytes N] [--clients N]
"""

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from lineclear.evaluation.figures import Figure, print_figures
from tests.e2e.processes import running

CHAT = {"messages": [{"role": "user", "content": "hello"}], "stream": True}


async def lateness(url: str, num_streams: int, seconds: float, interval_ms: float) -> list[float]:
    """By how many milliseconds each token of each stream came later than its interval after the one before it."""
    found: list[float] = []
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:

        async def stream() -> None:
            body = CHAT | {"max_tokens": int(seconds * 1000 / interval_ms)}
            async with http.stream("POST", "/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                last = None
                async for line in response.aiter_lines():
                    if '"content":"' not in line or '"content":""' in line:
                        continue
                    now = time.monotonic()
                    if last is not None:
                        found.append(max(0.0, 1000 * (now - last) - interval_ms))
                    last = now

        await asyncio.gather(*(stream() for _ in range(num_streams)))
    return found


def measure(arguments: argparse.Namespace) -> Iterator[Figure]:
    """The figures without, and with the load."""
    control = f"127.0.0.1:{_free_port()}"
    with running(
        ["-m", "lineclear", "gateway", "--control", control, "--port", "0", "--log-level", "error"]
    ) as gateway:
        url = gateway.wait_for(r"gateway on (http://[^,]+)")[1]
        with running(["-m", "bench.gateway.null_worker", f"tcp:{control}", str(arguments.interval_ms)]):
            gateway.wait_for("workers: null")
            shape = (arguments.streams, arguments.seconds, arguments.interval_ms)
            yield from _figures("alone", asyncio.run(lateness(url, *shape)))
            load = [
                sys.executable,
                "-m",
                "bench.gateway.load",
                url,
                str(arguments.prompt_bytes),
                str(arguments.clients),
            ]
            with subprocess.Popen(load, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                late = asyncio.run(lateness(url, *shape))
                num_counted, _ = process.communicate()
            yield from _figures("beside_long_prompts", late)
            yield Figure("long_prompts_counted", float(num_counted), "prompts")


def _figures(name: str, late: list[float]) -> Iterator[Figure]:
    cuts = statistics.quantiles(late, n=1000)
    yield Figure(f"{name}_late_p50", cuts[499], "ms")
    yield Figure(f"{name}_late_p99", cuts[989], "ms")
    yield Figure(f"{name}_late_max", max(late), "ms")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_gateway", description=__doc__)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--interval-ms", type=float, default=20.0)
    parser.add_argument("--prompt-bytes", type=int, default=300_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    print_figures(measure(arguments), arguments.json)


if __name__ == "__main__":
    main()
