"""How long blocks stay held after a client has left: from the cancel that decode reads until the last hold ends.

Clients leave at moments drawn evenly over the time that such a request takes. Counted are the cancels that met a
sequence whose prompt was on its way; others have no writer. What is waited for: prefill sees the abort between two of
its steps, then for the writes that fly.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from bench.handoff.observer import Event, read_events
from bench.handoff.service import Service, completion_body, lab_service, prompts
from bench.handoff.transfer import in_parallel
from lineclear.evaluation.figures import Figure

NUM_CLIENTS = 4
SHORTEST_LEN, LONGEST_LEN = 64, 1024
OPTIONS = ("--min-handoff-tokens", "16", "--max-total-tokens", "16384", "--no-prefix-cache")
SETTLE_SECONDS = 3.0


LABS: Mapping[str, Sequence[str]] = {
    "real": (),
    "real_slow_mover": ("--slow",),
    "null": ("--null",),
    "null_slow_mover": ("--null", "--slow"),
}


def cancel_to_free(num_requests: int = 120, labs: Mapping[str, Sequence[str]] = LABS) -> Iterator[Figure]:
    """With the model and without, with the plain mover and with one that takes its time; and how long steps took."""
    for name, lab in labs.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            lab_service(lab=lab, options=OPTIONS, observed=Path(folder)) as service,
        ):
            _leave(service, num_requests)
            time.sleep(SETTLE_SECONDS)
            yield from _figures(f"cancel_to_free_{name}", read_events(Path(folder) / "decode.jsonl"))
            steps = sorted(e["seconds"] for e in read_events(Path(folder) / "prefill.jsonl") if e["event"] == "step")
            yield Figure(f"cancel_to_free_{name}_step_p50", 1000 * steps[len(steps) // 2], "ms")
            yield Figure(f"cancel_to_free_{name}_step_max", 1000 * steps[-1], "ms")


def _leave(service: Service, num_requests: int) -> None:
    dice = random.Random(8)
    requests = prompts(9, [dice.randint(SHORTEST_LEN, LONGEST_LEN) for _ in range(num_requests)])
    for prompt in requests[:2]:
        service.ask(prompt)
    longest = max(service.ask(prompt).seconds for prompt in requests[:2]) * NUM_CLIENTS

    def client() -> None:
        with httpx.Client(base_url=service.url) as http:
            while requests:
                _ask_and_leave(http, requests.pop(), dice.uniform(0.001, longest))

    in_parallel(NUM_CLIENTS, client)


def _ask_and_leave(http: httpx.Client, prompt: Sequence[int], patience_seconds: float) -> None:
    with contextlib.suppress(httpx.TimeoutException):
        http.post("/v1/completions", json=completion_body(prompt, 1), timeout=patience_seconds)


def _figures(name: str, events: Sequence[Event]) -> Iterator[Figure]:
    cancelled = {
        event["sequence"]: event["at"]
        for event in events
        if event["event"] == "cancelled" and event["phase"] == "receiving"
    }
    freed = {event["sequence"]: event["at"] for event in events if event["event"] == "settled"}
    times = sorted(1000 * (freed[each] - at) for each, at in cancelled.items() if each in freed)
    yield Figure(f"{name}_cancels", len(cancelled))
    yield Figure(f"{name}_never_freed", len(cancelled) - len(times))
    if times:
        yield Figure(f"{name}_p50", times[len(times) // 2], "ms")
        yield Figure(f"{name}_p99", times[min(len(times) - 1, int(0.99 * len(times)))], "ms")
