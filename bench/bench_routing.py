"""Which share of agents' prompts is found in the cache of the worker that each policy chooses, and what a choice costs.

The requests of real coding agents (prefix structure and order; tokens are made up, 4 times fewer) go to a fleet of
workers. Each has a real prefix tree, and together these are as large as what the sessions need; a request is in work
until so many others have come. No model runs: what is counted are prompt tokens that the tree has. Beside the policies,
with and without names of sessions, stands one tree that is as large as all together: what no fleet can exceed.

    LINECLEAR_DATA=../shared python -m bench.bench_routing [--only NAME ...] [--json FILE]
"""

import argparse
import os
import random
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.sessions import BLOCK_SIZE, Cut, Replay, archive_path, load_replay
from lineclear.config.components import RoutingConfig
from lineclear.evaluation.figures import Figure, print_figures
from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.radix import RadixTree
from lineclear.routing.breaker import Ending
from lineclear.routing.candidates import Ask
from lineclear.routing.choice import ChoiceRules, Policy
from lineclear.routing.router import Room, Router, RouterRules, Ticket
from lineclear.routing.sketch import piece_names

NUM_WORKERS = 4
NUM_IN_WORK = 8
"""Requests that are in work at once."""
NUM_RUNNING = 8
CUT = Cut(scale=4, num_sessions=16, max_requests=40)

LONG_PROMPT_LEN = 100_000
MANY_WORKERS = 64
NUM_CHOICES = 200


class Cache:
    """What one worker has computed: a prefix tree over a pool."""

    def __init__(self, num_tokens: int) -> None:
        self._pool = BlockPool(num_tokens // BLOCK_SIZE)
        self._tree = RadixTree(self._pool, BLOCK_SIZE)
        self._now = 0

    def compute(self, prompt: list[int]) -> int:
        """Compute a prompt; returns its tokens that were there already."""
        self._now += 1
        tokens = array("i", prompt)
        node = self._tree.match(tokens, self._now)
        holder = Holder(HolderKind.SEQUENCE, self._now)
        known = self._tree.block_ids(node)
        self._pool.acquire(known, holder)
        num_new = (len(prompt) - 1) // BLOCK_SIZE - len(known)
        self._tree.evict(max(0, num_new - self._pool.num_free))
        blocks = self._pool.try_allocate(num_new, holder)
        assert blocks is not None
        self._tree.insert(node, tokens, blocks, self._now)
        self._pool.release([*known, *blocks], holder)
        return len(known) * BLOCK_SIZE


@dataclass(frozen=True)
class Outcome:
    """Of one replay: the share of prompt tokens that was found, and the largest load against the mean."""

    hit_rate: float
    imbalance: float


def replay(sessions: Replay, policy: Policy, *, has_names: bool) -> Outcome:
    """All requests, in order, through one router."""
    rules = ChoiceRules(policy=policy, max_imbalance=RoutingConfig().routing_imbalance)
    router = Router(RouterRules(choice=rules))
    num_tokens = max(sessions.working_set_tokens // NUM_WORKERS, sessions.pool_tokens(10**6))
    caches = {f"decode-{idx}": Cache(num_tokens) for idx in range(NUM_WORKERS)}
    for worker_id in caches:
        router.connect(worker_id, num_tokens, 0.0)
    in_work: deque[Ticket] = deque()
    num_found, num_placed = 0, dict.fromkeys(caches, 0)
    for number, (session, prompt) in enumerate(zip(sessions.sessions, sessions.prompts, strict=True)):
        if len(in_work) == NUM_IN_WORK:
            ended = in_work.popleft()
            router.end(ended, Ending.GOOD, float(number))
        rooms = [
            Room(
                worker_id=worker_id,
                num_sequences=sum(ticket.worker_id == worker_id for ticket in in_work),
                num_running=NUM_RUNNING,
                num_free=NUM_RUNNING,
            )
            for worker_id in caches
        ]
        key = f"session-{session}" if has_names else ""
        names = piece_names(prompt) if router.reads_prompts else ()
        ask = Ask(num_prompt_tokens=len(prompt), names=names, session_key=key)
        choice = router.choose(ask, rooms, [], float(number))
        assert choice is not None
        [ticket] = router.begin(choice, ask, float(number))
        num_found += caches[choice.worker_id].compute(prompt)
        num_placed[choice.worker_id] += len(prompt)
        router.first_token(ticket, float(number))
        in_work.append(ticket)
    total = sum(map(len, sessions.prompts))
    return Outcome(num_found / total, max(num_placed.values()) * NUM_WORKERS / total)


def policies() -> Iterator[Figure]:
    """Share of prompt tokens found, by policy."""
    sessions = load_replay(archive_path(os.environ["LINECLEAR_DATA"]), CUT)
    total = sum(map(len, sessions.prompts))
    together = Cache(max(sessions.working_set_tokens, sessions.pool_tokens(10**6)))
    yield Figure("requests", len(sessions.prompts))
    yield Figure("prompt_tokens", total, "tokens")
    yield Figure("working_set", sessions.working_set_tokens, "tokens")
    yield Figure("hit_rate_one_cache", sum(map(together.compute, sessions.prompts)) / total)
    for name, policy, has_names in (
        ("cache_aware", "cache_aware", True),
        ("cache_aware_without_names", "cache_aware", False),
        ("least_load", "least_load", True),
        ("round_robin", "round_robin", True),
    ):
        outcome = replay(sessions, policy, has_names=has_names)
        yield Figure(f"hit_rate_{name}", outcome.hit_rate)
        yield Figure(f"tokens_imbalance_{name}", outcome.imbalance, "x the mean")


def costs() -> Iterator[Figure]:
    """Time of one choice, which the gateway's event loop spends."""
    rng = random.Random(1)
    prompt = [rng.randrange(1, 100_000) for _ in range(LONG_PROMPT_LEN)]
    router = Router(RouterRules())
    worker_ids = [f"decode-{idx}" for idx in range(MANY_WORKERS)]
    prefill_ids = [f"prefill-{idx}" for idx in range(MANY_WORKERS)]
    for worker_id in (*worker_ids, *prefill_ids):
        router.connect(worker_id, 10 * LONG_PROMPT_LEN, 0.0)
    rooms = [Room(worker_id=each, num_sequences=0, num_running=64, num_free=64) for each in worker_ids]
    started = time.perf_counter()
    for _ in range(NUM_CHOICES):
        names = piece_names(prompt)
    yield Figure("names_of_100k_tokens", 1e3 * (time.perf_counter() - started) / NUM_CHOICES, "ms")
    ask = Ask(num_prompt_tokens=len(prompt), names=names)
    started = time.perf_counter()
    for number in range(NUM_CHOICES):
        choice = router.choose(ask, rooms, prefill_ids, float(number))
        assert choice is not None
        [ticket] = router.begin(choice, ask, float(number))
        router.end(ticket, Ending.GOOD, float(number))
    yield Figure("choice_among_64_and_64", 1e3 * (time.perf_counter() - started) / NUM_CHOICES, "ms")


MEASUREMENTS = {"policies": policies, "costs": costs}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_routing", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    print_figures((figure for name in arguments.only for figure in MEASUREMENTS[name]()), arguments.json)


if __name__ == "__main__":
    main()
