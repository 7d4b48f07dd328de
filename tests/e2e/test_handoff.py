"""Prefill and decode in processes of their own: the same answers, also while workers are killed, stopped, drained."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.asking import NUM_REQUESTS, SERVE, Answers, ask_all, check_invariants, settled_figures
from tests.e2e.processes import PATIENCE_SECONDS, Program, children_by_command, descendants, running

APART = ("--prefill", "2", "--decode", "2", "--min-handoff-tokens", "64", "--kv-sanitizer", "full")


@pytest.fixture
def apart() -> Iterator[Program]:
    with running([*SERVE, *APART]) as server:
        yield server


@pytest.mark.e2e
def test_the_answers_are_those_of_one_process_and_every_handoff_settles(expected: Answers, apart: Program) -> None:
    url = apart.wait_for(r"ready on (http://\S+)")[1]
    assert asyncio.run(ask_all(url)) == expected
    figures = settled_figures(url)
    handed_over = [value for name, value in figures.items() if name.startswith("lineclear_handoffs_total{")]
    assert sum(handed_over) >= NUM_REQUESTS  # counted at both ends
    assert figures['lineclear_handoff_tokens_total{worker="decode-0"}'] > 0
    assert figures['lineclear_handoff_tokens_total{worker="decode-1"}'] > 0
    assert all(figures[f'lineclear_sanitizer_seals_total{{worker="{name}"}}'] > 0 for name in ("decode-0", "prefill-0"))
    assert not any(value for name, value in figures.items() if name.startswith("lineclear_sanitizer_faults_total{"))
    check_invariants(url)
    apart.signal(signal.SIGINT)
    assert apart.wait() == 0


@pytest.mark.e2e
@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_a_killed_worker_costs_nobody_the_answer(expected: Answers, apart: Program, victim: str) -> None:
    url = apart.wait_for(r"ready on (http://\S+)")[1]

    def kill() -> None:
        os.kill(_worker_pid(apart, victim), signal.SIGKILL)

    assert asyncio.run(ask_all(url, kill)) == expected
    apart.wait_for(f"{victim}, life 2, is ready")
    settled_figures(url)
    check_invariants(url)


@pytest.mark.e2e
def test_a_prefill_instance_that_stands_still_is_done_without(expected: Answers) -> None:
    arguments = [*SERVE, "--min-handoff-tokens", "64"]
    with running([*arguments, "--heartbeat-seconds", "0.2", "--peer-timeout-seconds", "2"]) as server:
        url = server.wait_for(r"ready on (http://\S+)")[1]

        def stop() -> None:
            os.kill(_worker_pid(server, "prefill-0"), signal.SIGSTOP)

        assert asyncio.run(ask_all(url, stop)) == expected
        server.wait_for("prefill-0, life 2, is ready")  # the supervisor has ended the one that stands still
        settled_figures(url)
        check_invariants(url)


@pytest.mark.e2e
def test_what_waits_for_a_silent_instance_goes_to_another(expected: Answers, apart: Program) -> None:
    url = apart.wait_for(r"ready on (http://\S+)")[1]

    def stop() -> None:
        os.kill(_worker_pid(apart, "prefill-0"), signal.SIGSTOP)

    assert asyncio.run(ask_all(url, stop)) == expected
    lines = httpx.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
    assert any(line.startswith("lineclear_handoffs_total") and "peer_silent" in line for line in lines)
    os.kill(_worker_pid(apart, "prefill-0"), signal.SIGCONT)
    settled_figures(url)
    check_invariants(url)


@pytest.mark.e2e
def test_a_prefill_instance_that_keeps_dying_is_done_without(expected: Answers) -> None:
    with running([*SERVE, "--max-restarts", "0"]) as server:
        server.wait_for(r"ready on (http://\S+)")
        os.kill(_worker_pid(server, "prefill-0"), signal.SIGKILL)
        server.wait_for("given up, decode computes all prompts from now on")
        assert asyncio.run(ask_all(server.wait_for(r"ready on (http://\S+)")[1])) == expected


@pytest.mark.e2e
def test_a_drain_finishes_what_is_handed_over(expected: Answers, apart: Program) -> None:
    url = apart.wait_for(r"ready on (http://\S+)")[1]

    def drain() -> None:
        apart.signal(signal.SIGINT)

    answers = asyncio.run(ask_all(url, drain, concurrency=NUM_REQUESTS))
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


def _worker_pid(server: Program, worker_id: str) -> int:
    return children_by_command(server.process.pid)[worker_id]
