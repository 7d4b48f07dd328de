"""Replays coding agents' sessions through `lineclear serve`, with a device pool of a quarter of what they need.

Real processes and HTTP: prefill and decode apart, as is the default, and colocated. Every way to serve gets the same
requests, one after the other; what it found of their prompts is in the usage of its answers, and what its workers had
to compute is in its metrics. The answers are compared with those of pools that keep everything.

    LINECLEAR_DATA=../shared python -m bench.bench_replay [--only apart|colocated] [--json FILE]

Ways: `unbounded`, a device pool that keeps everything; `device_only`, a quarter of the working set; `tiers`, the same
pool with 2 GiB of host memory and a disk tier; `small_host`, with host memory for half of the working set, so that much
comes from disk; `restarted`, a service that finds on disk what `tiers` has left there.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import httpx

from bench.handoff.service import PATIENCE_SECONDS, completion_body, metrics
from bench.sessions import KV_BYTES_PER_TOKEN, Cut, Replay, archive_path, load_replay
from lineclear.evaluation.figures import Figure, print_figures
from tests.e2e.processes import running

Roles: TypeAlias = Literal["apart", "colocated"]

WORKING_SET_RATIO = 4
NUM_OUTPUTS = 8
GIB = 2**30


@dataclass(frozen=True)
class Found:
    """What came of the replay in one way."""

    texts: list[str]
    num_prompt_tokens: int
    num_cached_tokens: int
    """As the usage of the answers has it."""
    num_computed_tokens: int
    """Prompt tokens that workers computed, all of them together."""
    hit_tokens: dict[str, int]
    """By tier, of all workers."""
    num_handoffs: int
    mean_seconds: float
    """From asking to the end of the answer."""

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that the answering workers found in their caches."""
        return self.num_cached_tokens / self.num_prompt_tokens

    @property
    def computed_share(self) -> float:
        """Prompt tokens that were computed, by whomever, for one that was asked."""
        return self.num_computed_tokens / self.num_prompt_tokens


def serve_replay(replay: Replay, roles: Roles, options: Sequence[str]) -> Found:
    """Start a service, ask everything, look at its metrics, and stop it as a user does."""
    with _serving(roles, options) as url, httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http:
        answers: list[dict[str, object]] = []
        seconds: list[float] = []
        for prompt in replay.prompts:
            started = time.perf_counter()
            response = http.post("/v1/completions", json=completion_body(prompt, NUM_OUTPUTS))
            seconds.append(time.perf_counter() - started)
            answers.append(response.raise_for_status().json())
        return _found(answers, metrics(url), statistics.mean(seconds))


def replay_figures(replay: Replay, roles: Roles) -> Iterator[Figure]:
    """Every way, against a pool that keeps everything."""
    pool = replay.pool_tokens(WORKING_SET_RATIO)
    everything = ("--max-total-tokens", str(2 * replay.working_set_tokens))
    bounded = ("--max-total-tokens", str(pool))
    half_gib = replay.working_set_tokens * KV_BYTES_PER_TOKEN / 2 / GIB
    yield Figure(f"{roles}_requests", len(replay.prompts))
    yield Figure(f"{roles}_prompt_tokens", sum(map(len, replay.prompts)), "tokens")
    yield Figure(f"{roles}_working_set", replay.working_set_tokens, "tokens")
    yield Figure(f"{roles}_working_set_ratio", replay.working_set_tokens / pool, "x the device pool")
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory(prefix="lineclear-replay-")) for _ in range(2)]
        tiers = ("--host-cache-gib", "2", "--disk-cache-dir", folders[0])
        small = ("--host-cache-gib", f"{half_gib:.4f}", "--disk-cache-dir", folders[1])
        unbounded = serve_replay(replay, roles, everything)
        yield from _figures(f"{roles}_unbounded", unbounded, unbounded)
        ways = {
            "device_only": bounded,
            "tiers": (*bounded, *tiers),
            "small_host": (*bounded, *small),
            "restarted": (*bounded, *tiers),
        }
        for name, options in ways.items():
            yield from _figures(f"{roles}_{name}", serve_replay(replay, roles, options), unbounded)


def _figures(name: str, found: Found, unbounded: Found) -> Iterator[Figure]:
    yield Figure(f"{name}_hit_rate", found.hit_rate)
    yield Figure(f"{name}_hit_rate_below_unbounded", 100 * (unbounded.hit_rate - found.hit_rate), "points")
    yield Figure(f"{name}_computed_share", found.computed_share)
    for tier, num_tokens in found.hit_tokens.items():
        yield Figure(f"{name}_{tier}_hit_tokens", num_tokens)
    if found.num_handoffs:
        yield Figure(f"{name}_handoffs", found.num_handoffs)
    yield Figure(f"{name}_mean_time", 1000 * found.mean_seconds, "ms")
    num_wrong = sum(text != expected for text, expected in zip(found.texts, unbounded.texts, strict=True))
    yield Figure(f"{name}_other_answers", num_wrong)


@contextmanager
def _serving(roles: Roles, options: Sequence[str]) -> Iterator[str]:
    flags = ["--colocated"] if roles == "colocated" else []
    command = ["-m", "lineclear", "serve", "--port", "0", "--log-level", "warning", *flags, *options]
    with running(command) as program:
        yield program.wait_for(r"ready on (http://\S+)")[1]
        program.signal(signal.SIGINT)
        program.wait()


def _found(answers: list[dict[str, object]], figures: dict[str, float], mean_seconds: float) -> Found:
    usages = [answer["usage"] for answer in answers]
    hit_tokens: dict[str, int] = {}
    for tier in ("device", "host", "disk"):
        values = [value for name, value in figures.items() if _is_hits_of(name, tier)]
        if values:
            hit_tokens[tier] = int(sum(values))
    num_admitted = _total(figures, "lineclear_worker_prompt_tokens_total")
    num_cached = _total(figures, "lineclear_worker_cached_prompt_tokens_total")
    return Found(
        texts=[answer["choices"][0]["text"] for answer in answers],
        num_prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        num_cached_tokens=sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages),
        num_computed_tokens=num_admitted - num_cached - _total(figures, "lineclear_handoff_tokens_total", "decode"),
        hit_tokens=hit_tokens,
        num_handoffs=_total(figures, "lineclear_handoffs_total", "decode"),
        mean_seconds=mean_seconds,
    )


def _is_hits_of(name: str, tier: str) -> bool:
    return name.startswith("lineclear_tier_hit_tokens_total{") and f'tier="{tier}"' in name


def _total(figures: dict[str, float], metric: str, worker: str = "") -> int:
    """A metric summed over the workers whose names begin so."""
    names = [name for name in figures if name.startswith(f"{metric}{{") and f'worker="{worker}' in name]
    return int(sum(figures[name] for name in names))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.bench_replay", description=__doc__)
    parser.add_argument("--only", choices=("apart", "colocated"), help="one of both")
    parser.add_argument("--sessions", type=int, default=Cut().num_sessions, help="how many are replayed")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    replay = load_replay(archive_path(os.environ["LINECLEAR_DATA"]), Cut(num_sessions=arguments.sessions))
    chosen: tuple[Roles, ...] = (arguments.only,) if arguments.only else ("apart", "colocated")
    print_figures((figure for roles in chosen for figure in replay_figures(replay, roles)), arguments.json)


if __name__ == "__main__":
    main()
