"""All requests run into their deadline at once: each ends clearly, nothing is computed for them, then all is well."""

import asyncio
import os
import signal

import httpx
import pytest

from tests.e2e.asking import SERVE, Answers, ask_all, check_invariants, request_body, settled_figures, wait_for_peers
from tests.e2e.processes import PATIENCE_SECONDS, children_by_command, running

NUM_REQUESTS = 72
FIRST_TOKEN_SECONDS = 5
TOO_LATE = f"the worker ended the request: no first token within {FIRST_TOKEN_SECONDS} s"

APART = ("--min-handoff-tokens", "64", "--first-token-seconds", str(FIRST_TOKEN_SECONDS), "--max-attempts", "1")


@pytest.mark.e2e
def test_a_mass_timeout_is_over_when_the_load_is(expected: Answers) -> None:
    with running([*SERVE, *APART]) as server:
        url = server.wait_for(r"ready on (http://\S+)")[1]
        wait_for_peers(url)
        prefill = children_by_command(server.process.pid)["prefill-0"]
        os.kill(prefill, signal.SIGSTOP)  # its queue grows: orders, and then their aborts
        assert asyncio.run(_endings(url)) == [(500, TOO_LATE)] * NUM_REQUESTS
        os.kill(prefill, signal.SIGCONT)
        figures = settled_figures(url)
        # Aborts are answered before anything is computed, so what was given up costs nothing.
        assert figures['lineclear_worker_prompt_tokens_total{worker="prefill-0"}'] == 0
        assert sum(value for name, value in figures.items() if 'outcome="deadline",worker="decode-0"' in name) > 0
        assert figures['lineclear_handoff_blocks_quarantined{worker="decode-0"}'] == 0
        check_invariants(url)
        assert asyncio.run(ask_all(url, concurrency=1)) == expected
        assert settled_figures(url)['lineclear_handoffs_total{outcome="done",worker="decode-0"}'] > 0


async def _endings(url: str) -> list[tuple[int, str]]:
    async def ask(http: httpx.AsyncClient, number: int) -> tuple[int, str]:
        response = await http.post("/v1/chat/completions", json=request_body(number))
        return response.status_code, response.json().get("error", {}).get("message", "")

    limits = httpx.Limits(max_connections=NUM_REQUESTS)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, limits=limits) as http:
        return await asyncio.gather(*(ask(http, number) for number in range(NUM_REQUESTS)))
