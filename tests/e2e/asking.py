"""The same requests to any service, and what must hold of it afterwards."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

import httpx

from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, generate
from tests.e2e.processes import PATIENCE_SECONDS

NUM_REQUESTS = 24
SERVE = ("-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", "32768")

Answers = list[str | None]


async def ask_all(url: str, disturb: Callable[[], None] | None = None, concurrency: int = 8) -> Answers:
    """All answers, as text; after a third of them, something happens."""
    limit = asyncio.Semaphore(concurrency)
    num_answered = 0

    async def ask(http: httpx.AsyncClient, number: int) -> str | None:
        nonlocal num_answered
        async with limit:
            response = await http.post("/v1/chat/completions", json=request_body(number))
            num_answered += 1
            if num_answered == NUM_REQUESTS // 3 and disturb is not None:
                disturb()
            if response.status_code != 200:
                return None
            answer = response.json()
            text = json.dumps([answer["choices"], answer["usage"]["completion_tokens"]])
            return re.sub("call_[0-9a-f]+", "call", text)  # a call's id is drawn anew each time

    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        return await asyncio.gather(*(ask(http, number) for number in range(NUM_REQUESTS)))


def request_body(number: int) -> dict[str, Any]:
    """One of the requests, all different; short ones and long ones in turn."""
    task = generate(HELD_OUT_FIRST_SEED + number, target_tokens=150 + 60 * (number % 12))
    body: dict[str, Any] = {"model": "lineclear-tiny", "messages": task.messages, "max_tokens": 48, "temperature": 0}
    return body | ({"tools": task.tools} if task.tools else {})


def settled_figures(url: str) -> dict[str, float]:
    """The metrics once no handoff and no request is open."""

    def is_settled(figures: dict[str, float]) -> bool:
        names = ("lineclear_handoff_open", "lineclear_requests_open")
        open_ones = [value for name, value in figures.items() if name.startswith(names)]
        return bool(open_ones) and not any(open_ones)

    return figures_once(url, is_settled)


def wait_for_peers(url: str, worker_id: str = "decode-0") -> None:
    """Wait until a decode worker has a prefill instance: it says that it is ready before."""
    name = f'lineclear_handoff_peers{{worker="{worker_id}"}}'
    figures_once(url, lambda figures: figures.get(name, 0) > 0)


def figures_once(url: str, is_so: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The metrics as soon as something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
        figures = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
        if is_so(figures):
            return figures
        assert time.monotonic() < deadline, f"it does not come about: {figures}"
        time.sleep(0.2)


def check_invariants(url: str) -> None:
    checked = httpx.get(f"{url}/invariants", timeout=PATIENCE_SECONDS)
    assert checked.status_code == 200, checked.text
    assert all(each["ok"] for each in checked.json()["workers"])
