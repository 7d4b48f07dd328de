"""A write that is still in flight when its request is given up, made to land in the middle of other people's answers.

    long prompt ──▶ handed over ── a part has landed, the rest is held ── the client leaves
    short prompts, computed by decode, take every block that there is ── the rest lands ── what do they answer?

With the rule the long prompt's blocks are nobody's until the write has ended, and all answers are right. Without it
they belong to the short ones: the negative control of everything that `tests.e2e.chaos` finds to be right.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

import httpx

from tests.e2e.chaos_cluster import PREFILL, ChaosCluster
from tests.e2e.faults import Fault, Phase
from tests.e2e.histories import PATIENCE_SECONDS, Question, Verdict, ask, ask_many, judge

_rng = random.Random(11)


def _prompts(num: int, num_tokens: int) -> list[list[int]]:
    return [[_rng.randrange(300, 2000) for _ in range(num_tokens)] for _ in range(num)]


LONG = Question(prompts=_prompts(1, 400), max_tokens=4)
SHORT = Question(prompts=_prompts(12, 40), max_tokens=56)
POOL_TOKENS = 800
"""The long prompt takes half of it; the short ones want more than there is."""


def late_write(mover: str, expected: Sequence[list[str]], *, is_safe: bool) -> Counter[Verdict]:
    """What the short prompts come to."""
    with ExitStack() as stack:
        cluster = ChaosCluster(
            stack, mover, is_safe=is_safe, min_handoff_tokens=64, decodes=("d0",), pool_tokens=POOL_TOKENS
        )
        verdicts = asyncio.run(_ask_beside_a_late_write(cluster, expected))
        assert cluster.faults_left() == []
        return verdicts


async def _ask_beside_a_late_write(cluster: ChaosCluster, expected: Sequence[list[str]]) -> Counter[Verdict]:
    number = cluster.faults.arm(PREFILL, Phase.PART_LANDED, Fault.HOLD)
    try:
        async with httpx.AsyncClient(base_url=cluster.url, timeout=PATIENCE_SECONDS) as http:
            leaving = asyncio.create_task(ask(http, LONG, 0))
            while cluster.faults.read_fired(number) is None:
                assert not leaving.done(), "nothing was written"
                await asyncio.sleep(0.01)
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
        await asyncio.to_thread(_wait_for, cluster, 'lineclear_handoffs_total{outcome="cancelled",worker="d0"}', 1)
        asking = asyncio.create_task(
            ask_many(cluster.url, SHORT, range(len(SHORT.prompts)), concurrency=len(SHORT.prompts))
        )
        await asyncio.to_thread(_wait_until_full, cluster)
    finally:
        cluster.faults.release(number)
    return Counter(judge(history, expected[history.prompt_idx]) for history in await asking)


def _wait_for(cluster: ChaosCluster, name: str, least: float) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while cluster.figures().get(name, 0.0) < least:
        assert time.monotonic() < deadline, f"{name} is not {least} in time"
        time.sleep(0.01)


def _wait_until_full(cluster: ChaosCluster) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while cluster.figures()['lineclear_worker_blocks_free{worker="d0"}'] > 2:
        assert time.monotonic() < deadline, "the pool is not full in time"
        time.sleep(0.01)
