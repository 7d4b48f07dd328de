"""Many handoffs between real processes: slow movers, a pool that is reused at once, clients that leave.

    python -m tests.e2e.handoff_stress --requests 10000 [--mover nixl] [--unsafe] [--json FILE]

Prints one `name: value unit` line a figure. With `--unsafe` decode takes news for proof, so that wrong answers appear:
what the rule is there for.
"""

import argparse
import asyncio
import random
import socket
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from lineclear.evaluation.figures import Figure, print_figures
from tests.e2e.asking import SERVE, check_invariants, settled_figures
from tests.e2e.processes import running

NUM_PROMPTS = 64
MAX_TOKENS = 6
NUM_PREFILL = 3
"""With one, whose writes land in their order, a late write would always come before those of the block's next owner."""
NUM_PREFILL_OF_RANKS = 2
FIRST_TOKEN_SECONDS = 6.0
"""Some requests time out."""
LEAVING_SHARE = 0.25
LONGEST_PATIENCE_SECONDS = 1.2
NUM_CLIENTS = 16
POOL_TOKENS = 1536
"""A few prompts fill it."""


def _prompts() -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(300, 2000) for _ in range(rng.randint(40, 240))] for _ in range(NUM_PROMPTS)]


def _expected(prompts: list[list[int]]) -> list[list[str]]:
    """What one process answers, undisturbed."""
    with (
        running([*SERVE, "--colocated"]) as server,
        httpx.Client(base_url=server.wait_for(r"ready on (http://\S+)")[1]) as http,
    ):
        return [_tokens(http.post("/v1/completions", json=_body(prompt), timeout=120)) for prompt in prompts]


def _body(prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True, "logprobs": 0}


def _tokens(response: httpx.Response) -> list[str]:
    return response.json()["choices"][0]["logprobs"]["tokens"]


def stress(num_requests: int, mover: str, *, is_safe: bool = True, num_ranks: int = 1) -> list[Figure]:
    """Run so many requests, and judge every answer; each prefill instance has so many processes."""
    prompts = _prompts()
    expected = _expected(prompts)
    with ExitStack() as stack:
        control = _free_address()
        gateway = stack.enter_context(
            running(["-m", "lineclear", "gateway", "--control", control, "--port", "0", "--log-level", "warning"])
        )
        url = gateway.wait_for(r"gateway on (http://[^,]+)")[1]
        lab = ["-m", "tests.e2e.lab_worker", *([] if is_safe else ["--unsafe"]), "worker", "--join", control]
        lab += ["--mover", mover, "--max-total-tokens", str(POOL_TOKENS), "--min-handoff-tokens", "16"]
        lab += ["--log-level", "error", "--no-prefix-cache", "--first-token-seconds", str(FIRST_TOKEN_SECONDS)]
        prefill_ids = [f"p{idx}" for idx in range(NUM_PREFILL if num_ranks == 1 else NUM_PREFILL_OF_RANKS)]
        stack.enter_context(running([*lab, "--role", "decode", "--worker-id", "d0"])).wait_for("joined")
        for worker_id in prefill_ids:
            for arguments in _ranks_of(worker_id, num_ranks):
                worker = stack.enter_context(running([*lab, *arguments]))
            worker.wait_for("joined")
        gateway.wait_for(f"workers: d0; prefill: {', '.join(prefill_ids)}")
        counts = asyncio.run(_run_clients(url, prompts, expected, num_requests))
        figures = settled_figures(url)
        check_invariants(url)
    failed = sum(value for name, value in figures.items() if _is_failure(name))
    named = {
        "requests": counts["requests"], "answers_right": counts["right"], "answers_wrong": counts["wrong"],
        "clients_left": counts["left"], "refused": counts["refused"], "timed_out": counts["timed_out"],
        "errors": counts["errors"],
        "handoffs_done": figures['lineclear_handoffs_total{outcome="done",worker="d0"}'], "handoffs_failed": failed,
        "blocks_held_after": figures['lineclear_worker_blocks_held{worker="d0"}'],
        "blocks_quarantined_after": figures['lineclear_handoff_blocks_quarantined{worker="d0"}'],
    }  # fmt: skip
    kind = mover if num_ranks == 1 else f"{mover}_ranks"
    return [Figure(f"handoff_stress_{kind}_{name}", value) for name, value in named.items()]


def _ranks_of(worker_id: str, num_ranks: int) -> list[list[str]]:
    """How the processes of an instance are started, the first rank last: it joins when all are there."""
    flags = ["--role", "prefill", "--worker-id", worker_id]
    if num_ranks == 1:
        return [flags]
    flags += ["--cp", str(num_ranks), "--cp-leader", _free_address()]
    return [[*flags, "--cp-rank", str(rank)] for rank in reversed(range(num_ranks))]


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def _is_failure(name: str) -> bool:
    return name.startswith("lineclear_handoffs_total{") and 'worker="d0"' in name and 'outcome="done"' not in name


async def _run_clients(
    url: str, prompts: list[list[int]], expected: list[list[str]], num_requests: int
) -> Counter[str]:
    counts: Counter[str] = Counter()
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:

        async def client(number: int) -> None:
            rng = random.Random(number)
            while counts["requests"] < num_requests:
                counts["requests"] += 1
                await _ask(http, rng, prompts, expected, counts)

        await asyncio.gather(*(client(number) for number in range(NUM_CLIENTS)))
    return counts


async def _ask(
    http: httpx.AsyncClient,
    rng: random.Random,
    prompts: list[list[int]],
    expected: list[list[str]],
    counts: Counter[str],
) -> None:
    which = rng.randrange(len(prompts))
    patience = rng.uniform(0.0, LONGEST_PATIENCE_SECONDS) if rng.random() < LEAVING_SHARE else None
    try:
        async with asyncio.timeout(patience):
            response = await http.post("/v1/completions", json=_body(prompts[which]))
    except TimeoutError:
        counts["left"] += 1
        return
    if response.status_code == 429:
        counts["refused"] += 1
        await asyncio.sleep(0.1)
    elif response.status_code != 200:
        counts["timed_out" if "no first token within" in response.text else "errors"] += 1
    else:
        counts["right" if _tokens(response) == expected[which] else "wrong"] += 1


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--mover", default="shm", choices=["shm", "nixl"])
    parser.add_argument("--ranks", type=int, default=1, help="processes of each prefill instance")
    parser.add_argument("--unsafe", action="store_true", help="without the rule: wrong answers are expected")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = stress(arguments.requests, arguments.mover, is_safe=not arguments.unsafe, num_ranks=arguments.ranks)
    print_figures(figures, arguments.json)


if __name__ == "__main__":
    main()
