"""How fast a handoff's bytes move, on which runs, and how much of that time prefill's compute hides.

Rates count the time in which at least one write was posted and not yet answered by the mover's thread. They are
compared with plain copies of as many bytes, which the mover's thread makes after each write: beside the same compute,
from shared memory into shared memory whose pages are there.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.handoff.observer import Event, read_events
from bench.handoff.service import Service, lab_service, prompts
from lineclear.evaluation.figures import Figure
from lineclear.transport.movers.kinds import MoverKind

SETTLE_SECONDS = 0.3
"""What the workers still note after the client has its answer is there by then."""

WARM_LEN = 2048
SPARE_TOKENS = 2048
"""Of the pool beyond the long prompt: so a prompt's blocks are those that others had before."""

NUM_CLIENTS = 16
SHORTEST_LEN, LONGEST_LEN, MOST_TOKENS = 20, 1200, 24
"""Of the traffic that mixes the free blocks."""


@dataclass(frozen=True)
class Transfer:
    """The writes of one handoff."""

    num_writes: int
    num_runs: int
    num_bytes: int
    seconds: float
    """In which a write was posted and not answered."""
    copy_seconds: float
    """In which the mover's thread was at work on one."""
    copy_cpu_seconds: float
    """Of that thread while it was at work on one."""
    memcpy_seconds: float
    """Of plain copies of as many bytes, one after each write."""
    memcpy_cpu_seconds: float


@dataclass(frozen=True)
class Handoff:
    """One prompt that was handed over, as its client and both workers saw it."""

    transfer: Transfer
    ttft_seconds: float
    exposed_seconds: float
    """From the end of the last chunk's compute until decode has read that everything is written."""


class Watched:
    """A service with observers, asked one prompt at a time."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        self._folder = folder

    def hand_over(self, prompt: Sequence[int]) -> Handoff:
        """Ask for one token, and tell how its prompt came."""
        started = time.monotonic()
        answer = self.service.ask(prompt)
        time.sleep(SETTLE_SECONDS)
        decode, prefill = (self._events(role, started) for role in ("decode", "prefill"))
        (ready,) = [event["at"] for event in decode if event["event"] == "ready"]
        last_step = [event["at"] for event in prefill if event["event"] == "step"][-1]
        return Handoff(_transfer(prefill), answer.ttft_seconds, ready - last_step)

    def _events(self, role: str, since: float) -> list[Event]:
        return [event for event in read_events(self._folder / f"{role}.jsonl") if event["at"] >= since]


def _transfer(events: Sequence[Event]) -> Transfer:
    at: dict[str, list[float]] = {name: [] for name in ("posted", "begun", "ended")}
    for event in events:
        at.get(event["event"], []).append(event["at"])
    posted = [event for event in events if event["event"] == "posted"]
    return Transfer(
        num_writes=len(posted),
        num_runs=sum(event["num_runs"] for event in posted),
        num_bytes=sum(event["num_bytes"] for event in posted),
        seconds=_covered(at["posted"], at["ended"]),
        copy_seconds=_covered(at["begun"], at["ended"]),
        copy_cpu_seconds=_sum(events, "ended", "cpu_seconds"),
        memcpy_seconds=_sum(events, "memcpy", "seconds"),
        memcpy_cpu_seconds=_sum(events, "memcpy", "cpu_seconds"),
    )


def _sum(events: Sequence[Event], name: str, fact: str) -> float:
    return sum(event[fact] for event in events if event["event"] == name)


def _covered(starts: Sequence[float], ends: Sequence[float]) -> float:
    """Time in which at least one of the intervals lies."""
    num_open, began, seconds = 0, 0.0, 0.0
    for at, change in sorted([*((start, 1) for start in starts), *((end, -1) for end in ends)]):
        began = at if num_open == 0 else began
        num_open += change
        seconds += at - began if num_open == 0 else 0.0
    return seconds


def real(mover: MoverKind, prompt_len: int, num_rounds: int) -> Iterator[Figure]:
    """Hand over a prompt that is really computed, in turns with a worker that does both."""
    options = ["--mover", mover, "--max-total-tokens", str(prompt_len + SPARE_TOKENS), "--no-prefix-cache"]
    with (
        tempfile.TemporaryDirectory() as folder,
        lab_service(options=options, observed=Path(folder)) as apart,
        lab_service(options=options, prefills=False) as colocated,
    ):
        watched = Watched(apart, Path(folder))
        for warm in prompts(0, [WARM_LEN] * (1 + prompt_len // WARM_LEN)):  # every page of both memories is there
            watched.hand_over(warm)
        handoffs: list[Handoff] = []
        ttft: list[float] = []
        for prompt in prompts(1, [prompt_len] * num_rounds):
            handoffs.append(watched.hand_over(prompt))
            ttft.append(colocated.ask(prompt).ttft_seconds)
    transfers = [each.transfer for each in handoffs]
    name = f"handoff_{_short(prompt_len)}_{mover}"
    yield from _rates(name, transfers)
    seconds = statistics.median(each.seconds for each in transfers)
    exposed = statistics.median(each.exposed_seconds for each in handoffs)
    yield Figure(f"{name}_transfer", 1000 * seconds, "ms")
    yield Figure(f"{name}_last_compute_to_ready", 1000 * exposed, "ms")
    yield Figure(f"{name}_transfer_hidden_share", 1 - exposed / seconds)
    apart_ttft = statistics.median(each.ttft_seconds for each in handoffs)
    yield Figure(f"{name}_ttft_apart", apart_ttft, "s")
    yield Figure(f"{name}_ttft_colocated", statistics.median(ttft), "s")
    yield Figure(f"{name}_ttft_ratio", apart_ttft / statistics.median(ttft), "x colocated")


def layouts(mover: MoverKind, prompt_len: int, num_rounds: int, num_mixing: int) -> Iterator[Figure]:
    """Move a prompt's KV without computing it: into fresh pools, and after traffic that has mixed the free blocks."""
    pool = ["--mover", mover, "--max-total-tokens", str(prompt_len + SPARE_TOKENS)]
    for cache, options in (("no_cache", [*pool, "--no-prefix-cache"]), ("cache", pool)):
        with (
            tempfile.TemporaryDirectory() as folder,
            lab_service(
                lab=["--null"], options=[*options, "--min-handoff-tokens", "1"], observed=Path(folder)
            ) as service,
        ):
            watched = Watched(service, Path(folder))
            for state in ("fresh", "mixed"):
                if state == "mixed":
                    _mix(service, num_mixing)
                transfers = [
                    watched.hand_over(each).transfer for each in prompts(len(state), [prompt_len] * num_rounds)
                ]
                yield from _rates(f"layout_{mover}_{cache}_{state}", transfers)


def _mix(service: Service, num_requests: int) -> None:
    """Let requests of many lengths run beside each other, so that blocks become free in no order."""
    lens = np.random.default_rng(5).integers(SHORTEST_LEN, LONGEST_LEN, num_requests).tolist()
    left = list(zip(prompts(6, lens), lens, strict=True))
    in_parallel(NUM_CLIENTS, lambda: _ask_all(service, left))


def _ask_all(service: Service, left: list[tuple[list[int], int]]) -> None:
    while left:
        prompt, length = left.pop()
        service.ask(prompt, 1 + length % MOST_TOKENS)


def in_parallel(count: int, work: Callable[[], None]) -> None:
    """Run `work` in so many threads, and wait for all."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _rates(name: str, transfers: Sequence[Transfer]) -> Iterator[Figure]:
    def median(of: Callable[[Transfer], float]) -> float:
        return statistics.median(map(of, transfers))

    yield Figure(f"{name}_bytes", transfers[-1].num_bytes / 1e6, "MB")
    yield Figure(f"{name}_writes", transfers[-1].num_writes)
    yield Figure(f"{name}_run", median(lambda each: each.num_bytes / each.num_runs / 1024), "KiB")
    yield Figure(f"{name}_rate", median(lambda each: each.num_bytes / each.seconds / 1e9), "GB/s")
    yield Figure(f"{name}_copy_rate", median(lambda each: each.num_bytes / each.copy_seconds / 1e9), "GB/s")
    yield Figure(f"{name}_memcpy_rate", median(lambda each: each.num_bytes / each.memcpy_seconds / 1e9), "GB/s")
    yield Figure(f"{name}_ratio", median(lambda each: each.memcpy_seconds / each.seconds), "x memcpy")
    yield Figure(f"{name}_copy_ratio", median(lambda each: each.memcpy_seconds / each.copy_seconds), "x memcpy")
    yield Figure(f"{name}_cpu_ratio", median(lambda each: each.memcpy_cpu_seconds / each.copy_cpu_seconds), "x memcpy")


def _short(num_tokens: int) -> str:
    return f"{num_tokens // 1024}k" if num_tokens % 1024 == 0 else str(num_tokens)
