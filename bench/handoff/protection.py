"""What it costs that blocks wait for line clear, in healthy traffic: against a decode worker that takes news for proof.

Two services run side by side and take turns with the same requests, from several clients at once, none of which leaves.
Throughput is told by the clock and, because a shared machine is noisy, by CPU time of all three processes. In *null*
services nothing is computed and nothing copied, so that deciding is all there is: the difference that shows there, in
milliseconds, is divided by what a request costs with the model.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.handoff.intervals import bootstrap
from bench.handoff.service import Service, lab_service, prompts
from bench.handoff.transfer import in_parallel
from lineclear.evaluation.figures import Figure

NUM_CLIENTS = 8
SHORTEST_LEN, LONGEST_LEN, MOST_TOKENS = 64, 512, 16
OPTIONS = ("--min-handoff-tokens", "16", "--max-total-tokens", "32768", "--no-prefix-cache")
NULL = ("--null", "--no-copy")


@dataclass(frozen=True)
class Turn:
    """One service's turn with all requests."""

    seconds: float
    cpu_seconds: float


def protection_cost(
    *, real_turns: int = 4, real_requests: int = 16, null_turns: int = 16, null_requests: int = 120
) -> Iterator[Figure]:
    """Shares of throughput, with 95 % intervals; below 0: the protected service was the faster one."""
    null = list(_turns(NULL, null_turns, null_requests))
    real = list(_turns((), real_turns, real_requests))
    request_cpu = statistics.median(safe.cpu_seconds for safe, _ in real) / real_requests
    extra = [(safe.cpu_seconds - unsafe.cpu_seconds) / null_requests for safe, unsafe in null]
    yield Figure("protection_cpu_of_a_request", 1000 * request_cpu, "ms")
    yield from _interval("protection_cpu_of_deciding_extra", [1e6 * each for each in extra], "µs a request")
    yield from _interval("protection_cost", [100 * each / request_cpu for each in extra], "%")
    for name, turns in (("real", real), ("null", null)):
        cpu = [100 * (safe.cpu_seconds / unsafe.cpu_seconds - 1) for safe, unsafe in turns]
        clock = [100 * (safe.seconds / unsafe.seconds - 1) for safe, unsafe in turns]
        yield from _interval(f"protection_cost_{name}_by_cpu", cpu, "%")
        yield from _interval(f"protection_cost_{name}_by_clock", clock, "%")


def _interval(name: str, values: Sequence[float], unit: str) -> Iterator[Figure]:
    interval = bootstrap(values)
    yield Figure(name, interval.median, unit)
    yield Figure(f"{name}_low", interval.low, unit)
    yield Figure(f"{name}_high", interval.high, unit)


def _turns(lab: Sequence[str], num_turns: int, num_requests: int) -> Iterator[tuple[Turn, Turn]]:
    """Pairs of turns of the protected and the unsafe service, which change who begins."""
    lens = np.random.default_rng(3).integers(SHORTEST_LEN, LONGEST_LEN, num_requests).tolist()
    requests = list(zip(prompts(4, lens), lens, strict=True))
    with (
        lab_service(lab=lab, options=OPTIONS) as safe,
        lab_service(lab=[*lab, "--unsafe"], options=OPTIONS) as unsafe,
    ):
        for service in (safe, unsafe):
            _turn(service, requests)
        for number in range(num_turns):
            if number % 2:
                second, first = _turn(unsafe, requests), _turn(safe, requests)
            else:
                first, second = _turn(safe, requests), _turn(unsafe, requests)
            yield first, second


def _turn(service: Service, requests: Sequence[tuple[list[int], int]]) -> Turn:
    left = list(requests)

    def client() -> None:
        while left:
            prompt, length = left.pop()
            service.ask(prompt, 1 + length % MOST_TOKENS)

    started, cpu = time.perf_counter(), sum(service.cpu_seconds().values())
    in_parallel(NUM_CLIENTS, client)
    return Turn(time.perf_counter() - started, sum(service.cpu_seconds().values()) - cpu)
