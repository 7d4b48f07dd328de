"""Asks a server from several clients at once, each as soon as it has its answer; some leave before."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from lineclear.lab.plan import Plan
from lineclear.lab.results import Result, answer_text

FIRST_TOKEN_ID, LAST_TOKEN_ID = 300, 2000
"""Ordinary tokens of the bundled model."""
TIMEOUT_SECONDS = 300.0
BUSY_PAUSE_SECONDS = 0.1


@dataclass(slots=True)
class Load:
    """What came of a load."""

    results: list[Result] = field(default_factory=list[Result])
    num_left: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0


def requests_of(plan: Plan) -> list[dict[str, Any]]:
    """The different requests of a plan: greedy completions of random tokens."""
    rng = random.Random(plan.seed)  # noqa: S311 - no secret
    low, high = plan.prompt_len
    prompts = [
        [rng.randint(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(rng.randint(low, high))]
        for _ in range(plan.num_prompts)
    ]
    return [
        {"prompt": prompt, "max_tokens": plan.max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0}
        for prompt in prompts
    ]


async def run_load(url: str, plan: Plan, num_clients: int, on_answer: Callable[[], None]) -> Load:
    """Ask until `plan.requests` have been asked for, and all have ended."""
    load, requests = Load(), requests_of(plan)
    numbers = iter(range(plan.requests))
    started = time.monotonic()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS, limits=limits) as http:

        async def client(idx: int) -> None:
            rng = random.Random(f"{plan.seed} {idx}")  # noqa: S311 - no secret
            for number in numbers:
                await _ask(http, rng, plan, number, rng.choice(requests), load)
                on_answer()

        await asyncio.gather(*(client(idx) for idx in range(num_clients)))
    load.seconds = time.monotonic() - started
    return load


async def _ask(
    http: httpx.AsyncClient, rng: random.Random, plan: Plan, number: int, request: dict[str, Any], load: Load
) -> None:
    leaves = rng.random() < plan.leaving_share
    patience = rng.uniform(0.0, plan.longest_patience) if leaves else None
    started = time.monotonic()
    try:
        async with asyncio.timeout(patience):
            while True:
                response = await http.post("/v1/completions", json=request)
                if response.status_code != 429:
                    break
                await asyncio.sleep(BUSY_PAUSE_SECONDS)
    except TimeoutError:
        load.num_left += 1
        return
    except httpx.TransportError as error:
        load.errors[type(error).__name__] += 1
        return
    seconds = time.monotonic() - started
    if response.is_success:
        text, error = answer_text(response.json()), None
    else:
        text, error = "", f"{response.status_code}: {response.text[:200]}"
        load.errors[str(response.status_code)] += 1
    load.results.append(Result(id=str(number), request=request, text=text, error=error, seconds=seconds))
