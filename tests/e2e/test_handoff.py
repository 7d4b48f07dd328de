"""Prefill and decode in processes of their own: the same answers, also while workers are killed, stopped, drained."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, generate
from tests.e2e.processes import PATIENCE_SECONDS, Program, children_by_command, descendants, running

NUM_REQUESTS = 24
SERVE = ("-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", "32768")
APART = ("--prefill", "2", "--decode", "2", "--min-handoff-tokens", "64")

Answers = list[str | None]


@pytest.fixture(scope="module")
def expected() -> Answers:
    """What one process answers."""
    with running(SERVE) as server:
        answers = asyncio.run(_ask_all(server.wait_for(r"ready on (http://\S+)")[1]))
    assert all(answers)
    return answers


@pytest.fixture
def apart() -> Iterator[Program]:
    with running([*SERVE, *APART]) as server:
        yield server


@pytest.mark.e2e
def test_the_answers_are_those_of_one_process_and_every_handoff_settles(expected: Answers, apart: Program) -> None:
    url = apart.wait_for(r"ready on (http://\S+)")[1]
    assert asyncio.run(_ask_all(url)) == expected
    figures = _settled_figures(url)
    handed_over = [value for name, value in figures.items() if name.startswith("lineclear_handoffs_total{")]
    assert sum(handed_over) >= NUM_REQUESTS  # counted at both ends
    assert figures['lineclear_handoff_tokens_total{worker="decode-0"}'] > 0
    assert figures['lineclear_handoff_tokens_total{worker="decode-1"}'] > 0
    _check_invariants(url)
    apart.signal(signal.SIGINT)
    assert apart.wait() == 0


@pytest.mark.e2e
@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_a_killed_worker_costs_nobody_the_answer(expected: Answers, apart: Program, victim: str) -> None:
    url = apart.wait_for(r"ready on (http://\S+)")[1]

    def kill() -> None:
        os.kill(_worker_pid(apart, victim), signal.SIGKILL)

    assert asyncio.run(_ask_all(url, kill)) == expected
    apart.wait_for(f"{victim}, life 2, is ready")
    _settled_figures(url)
    _check_invariants(url)


@pytest.mark.e2e
def test_a_prefill_instance_that_stands_still_is_done_without(expected: Answers) -> None:
    arguments = [*SERVE, "--prefill", "1", "--min-handoff-tokens", "64"]
    with running([*arguments, "--heartbeat-seconds", "0.2", "--peer-timeout-seconds", "2"]) as server:
        url = server.wait_for(r"ready on (http://\S+)")[1]

        def stop() -> None:
            os.kill(_worker_pid(server, "prefill-0"), signal.SIGSTOP)

        assert asyncio.run(_ask_all(url, stop)) == expected
        server.wait_for("prefill-0, life 2, is ready")  # the supervisor has ended the one that stands still
        _settled_figures(url)
        _check_invariants(url)


@pytest.mark.e2e
def test_a_drain_finishes_what_is_handed_over(expected: Answers, apart: Program) -> None:
    url = apart.wait_for(r"ready on (http://\S+)")[1]

    def drain() -> None:
        apart.signal(signal.SIGINT)

    answers = asyncio.run(_ask_all(url, drain, concurrency=NUM_REQUESTS))
    assert answers == expected
    assert apart.wait() == 0


@pytest.mark.e2e
def test_a_killed_supervisor_leaves_nothing(apart: Program) -> None:
    apart.wait_for(r"ready on (http://\S+)")
    children = descendants(apart.process.pid)
    assert len(children) == 5
    apart.signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def _ask_all(url: str, disturb: Callable[[], None] | None = None, concurrency: int = 8) -> Answers:
    """All answers, as text; after a third of them, something happens."""
    limit = asyncio.Semaphore(concurrency)
    num_answered = 0

    async def ask(http: httpx.AsyncClient, number: int) -> str | None:
        nonlocal num_answered
        async with limit:
            response = await http.post("/v1/chat/completions", json=_body(number))
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


def _body(number: int) -> dict[str, Any]:
    task = generate(HELD_OUT_FIRST_SEED + number, target_tokens=150 + 60 * (number % 12))
    body: dict[str, Any] = {"model": "lineclear-tiny", "messages": task.messages, "max_tokens": 48, "temperature": 0}
    return body | ({"tools": task.tools} if task.tools else {})


def _worker_pid(server: Program, worker_id: str) -> int:
    return children_by_command(server.process.pid)[worker_id]


def _settled_figures(url: str) -> dict[str, float]:
    """The metrics once no handoff and no request is open."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
        figures = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
        names = ("lineclear_handoff_open", "lineclear_requests_open")
        open_ones = [value for name, value in figures.items() if name.startswith(names)]
        if open_ones and not any(open_ones):
            return figures
        assert time.monotonic() < deadline, "a handoff does not settle"
        time.sleep(0.2)


def _check_invariants(url: str) -> None:
    checked = httpx.get(f"{url}/invariants", timeout=PATIENCE_SECONDS)
    assert checked.status_code == 200, checked.text
    assert all(each["ok"] for each in checked.json()["workers"])
