"""64 concurrent clients with random aborts for two minutes: nothing leaks, every request ends exactly once.

Everything is real: `lineclear serve`, its processes, HTTP on loopback. The clients stop by themselves.
"""

import asyncio
import json
import random
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, generate
from tests.e2e.processes import running

NUM_CLIENTS = 64
SECONDS = 120.0
REQUEST_SECONDS = 60.0
MAX_TOTAL_TOKENS = 12_288
"""Small enough that sequences queue, evict and preempt."""

ENDINGS = ("completed", "failed", "disconnected")


@dataclass
class Outcomes:
    """What the clients saw."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        self.faults.append(text)


@pytest.mark.e2e
@pytest.mark.soak
def test_two_minutes_of_aborting_clients_leave_nothing_behind() -> None:
    arguments = ["-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", str(MAX_TOTAL_TOKENS)]
    with running([*arguments, "--max-running", "24", "--max-waiting", "48"]) as server:
        url = server.wait_for(r"ready on (http://\S+)")[1]
        outcomes = asyncio.run(_run_clients(url))
        assert outcomes.faults == []
        assert outcomes.counts["completed"] > NUM_CLIENTS
        assert outcomes.counts["aborted"] > NUM_CLIENTS
        figures = asyncio.run(_quiet_figures(url))
        assert figures["lineclear_requests_open"] == 0
        assert figures["lineclear_worker_running"] == figures["lineclear_worker_waiting"] == 0
        assert figures["lineclear_worker_blocks_quarantined"] == 0
        assert (
            figures["lineclear_worker_blocks_free"] + figures["lineclear_worker_blocks_held"]
            == figures["lineclear_worker_blocks_total"]
        )
        assert figures["lineclear_handoffs_total"] > NUM_CLIENTS
        assert figures["lineclear_workers_lost_total"] == 0
        assert figures["lineclear_unknown_outputs_total"] == 0
        ended = {outcome: figures[f'lineclear_requests_ended_total{{outcome="{outcome}"}}'] for outcome in ENDINGS}
        assert ended["failed"] == 0
        # An aborting client may have got all of its answer, or may not have been accepted yet.
        assert ended["completed"] >= outcomes.counts["completed"]
        assert 0 < ended["disconnected"] <= outcomes.counts["aborted"]
        checked = httpx.get(f"{url}/invariants", timeout=REQUEST_SECONDS)
        assert (checked.status_code, [each["ok"] for each in checked.json()["workers"]]) == (200, [True, True])
        server.signal(signal.SIGINT)
        assert server.wait() == 0


async def _run_clients(url: str) -> Outcomes:
    outcomes = Outcomes()
    deadline = time.monotonic() + SECONDS
    limits = httpx.Limits(max_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS, limits=limits) as http:
        clients = [_client(http, number, deadline, outcomes) for number in range(NUM_CLIENTS)]
        await asyncio.gather(*clients)
    return outcomes


async def _client(http: httpx.AsyncClient, number: int, deadline: float, outcomes: Outcomes) -> None:
    rng = random.Random(number)
    while time.monotonic() < deadline:
        body = _body(rng)
        patience = rng.uniform(0.0, 3.0) if rng.random() < 0.4 else None
        try:
            async with asyncio.timeout(patience):
                await _ask(http, body, outcomes)
        except TimeoutError:
            outcomes.counts["aborted"] += 1
        except httpx.HTTPError as error:
            outcomes.fault(f"{type(error).__name__}: {error} for {body['max_tokens']} tokens")


def _body(rng: random.Random) -> dict[str, Any]:
    """A request of a session's kind: prompts repeat across clients, so prefixes are shared."""
    task = generate(HELD_OUT_FIRST_SEED + rng.randrange(40), target_tokens=rng.choice((150, 300, 700)))
    body: dict[str, Any] = {"model": "lineclear-tiny", "messages": task.messages, "max_tokens": rng.randrange(1, 120)}
    body["stream"] = rng.random() < 0.7
    body["temperature"] = rng.choice((0.0, 0.7))
    if task.tools:
        body["tools"] = task.tools
    if rng.random() < 0.15:
        body["n"] = 2
    if rng.random() < 0.15:
        body["stop"] = ["\n"]
    return body


async def _ask(http: httpx.AsyncClient, body: dict[str, Any], outcomes: Outcomes) -> None:
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code == 429:
            outcomes.counts["refused"] += 1
            if not response.headers.get("retry-after"):
                outcomes.fault("429 without Retry-After")
            await asyncio.sleep(0.2)
            return
        if response.status_code != 200:
            outcomes.fault(f"status {response.status_code}: {(await response.aread())[:300]!r}")
            return
        num_choices = body.get("n", 1)
        if body["stream"]:
            endings = await _stream_endings(response, outcomes)
        else:
            choices = json.loads(await response.aread())["choices"]
            endings = Counter(choice["index"] for choice in choices if choice["finish_reason"])
        if endings != Counter(range(num_choices)):
            outcomes.fault(f"{num_choices} choices, endings {dict(endings)}")
        outcomes.counts["completed"] += 1


async def _stream_endings(response: httpx.Response, outcomes: Outcomes) -> Counter[int]:
    endings: Counter[int] = Counter()
    is_done = False
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        if is_done:
            outcomes.fault(f"after [DONE]: {line}")
        if line == "data: [DONE]":
            is_done = True
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            outcomes.fault(f"error event: {line}")
        for choice in chunk.get("choices", ()):
            if choice["index"] in endings:
                outcomes.fault(f"choice {choice['index']} goes on after its ending: {line}")
            if choice["finish_reason"]:
                endings[choice["index"]] += 1
    if not is_done:
        outcomes.fault("a stream ended without [DONE]")
    return endings


async def _quiet_figures(url: str) -> dict[str, float]:
    """The metrics once the last aborts have been seen by the worker."""
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS) as http:
        while True:
            lines = (await http.get("/metrics")).text.splitlines()
            figures = _sum_over_workers(lines)
            busy = (
                "lineclear_requests_open",
                "lineclear_worker_running",
                "lineclear_worker_waiting",
                "lineclear_handoff_open",
            )
            if not any(figures[name] for name in busy):
                return figures


def _sum_over_workers(lines: list[str]) -> dict[str, float]:
    """Each figure by its name; how requests ended also by that label."""
    figures: dict[str, float] = defaultdict(float)
    for line in lines:
        if line.startswith("#"):
            continue
        name, value = line.rsplit(" ", 1)
        keep_labels = name.startswith("lineclear_requests_ended_total")
        figures[name if keep_labels else name.partition("{")[0]] += float(value)
    return figures
