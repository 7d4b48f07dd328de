"""Prefill instances of several processes: the same answers, with tiers, and while ranks are killed or stand still."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.asking import NUM_REQUESTS, SERVE, Answers, ask_all, check_invariants, settled_figures
from tests.e2e.processes import Program, children_by_command, running

pytestmark = pytest.mark.e2e

HANDED_OVER = ("--min-handoff-tokens", "64")


@contextmanager
def serving(*flags: str) -> Iterator[tuple[Program, str]]:
    with running([*SERVE, *HANDED_OVER, *flags]) as server:
        yield server, server.wait_for(r"ready on (http://\S+)")[1]


def leave(server: Program) -> None:
    server.signal(signal.SIGINT)
    assert server.wait() == 0


@pytest.mark.parametrize("flags", [("--cp", "2"), ("--cp", "2", "--kv-layout", "replicated"), ("--cp", "4")])
def test_the_answers_are_those_of_one_process(expected: Answers, flags: tuple[str, ...]) -> None:
    with serving(*flags) as (server, url):
        assert asyncio.run(ask_all(url)) == expected
        figures = settled_figures(url)
        assert figures["lineclear_workers_lost_total"] == 0, server.text
        assert figures['lineclear_handoffs_total{outcome="done",worker="prefill-0"}'] >= NUM_REQUESTS // 2
        assert figures['lineclear_worker_blocks_quarantined{worker="decode-0"}'] == 0
        assert figures['lineclear_ranks{worker="prefill-0"}'] == int(flags[1])
        assert figures['lineclear_ranks_gathered_bytes_total{worker="prefill-0"}'] > 0
        check_invariants(url)
        leave(server)


def test_tiers_of_all_ranks_together(expected: Answers, tmp_path: Path) -> None:
    """The pool holds two prompts; what it gives up comes back from host memory, and after a restart from disk."""
    flags = ("--cp", "2", "--max-total-tokens", "4096", "--host-cache-gib", "0.05", "--disk-cache-dir", str(tmp_path))
    with serving(*flags, "--prefetch-policy", "wait") as (server, url):
        assert asyncio.run(ask_all(url)) == expected
        assert asyncio.run(ask_all(url)) == expected
        settled_figures(url)
        check_invariants(url)
        leave(server)
    forget_decodes_files(tmp_path)
    with serving(*flags, "--prefetch-policy", "wait") as (server, url):
        assert asyncio.run(ask_all(url)) == expected
        figures = settled_figures(url)
        assert figures["lineclear_workers_lost_total"] == 0, server.text
        assert figures['lineclear_tier_hit_tokens_total{tier="disk",worker="prefill-0"}'] > 1000
        check_invariants(url)
        leave(server)


def forget_decodes_files(folder: Path) -> None:
    """Its files have all layers, and those of each rank some: prompts are computed by prefill again."""
    sizes = {each: next(each.glob("*/*.kv")).stat().st_size for each in folder.iterdir()}
    assert len(sizes) == 3
    shutil.rmtree(max(sizes, key=sizes.__getitem__))


@pytest.mark.parametrize("victim", ["prefill-0", "prefill-0.1"])
def test_a_rank_that_is_killed_costs_nobody_the_answer(expected: Answers, victim: str) -> None:
    with serving("--cp", "2") as (server, url):
        before = children_by_command(server.process.pid)

        def kill() -> None:
            os.kill(before[victim], signal.SIGKILL)

        assert asyncio.run(ask_all(url, kill)) == expected
        server.wait_for("prefill-0, life 2, is ready")
        after = children_by_command(server.process.pid)
        assert {after["prefill-0"], after["prefill-0.1"]}.isdisjoint(before.values())
        settled_figures(url)
        check_invariants(url)


def test_a_rank_that_stands_still_ends_its_instance_after_the_deadline(expected: Answers) -> None:
    flags = ("--cp", "2", "--rank-timeout-seconds", "1", "--heartbeat-seconds", "0.2", "--peer-timeout-seconds", "2")
    with serving(*flags) as (server, url):

        def stop() -> None:
            os.kill(children_by_command(server.process.pid)["prefill-0.1"], signal.SIGSTOP)

        assert asyncio.run(ask_all(url, stop)) == expected
        server.wait_for("prefill-0, life 2, is ready")
        settled_figures(url)
        check_invariants(url)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--cp", "9"), r"cp: got 9, allowed: at most \d+"),
        (
            ("--cp", "2", "--staging-gib", "0.001"),
            r"staging_gib: got 0\.001, allowed: at least 0\.\d+, for one sequence",
        ),
        (("--cp", "2", "--colocated"), "cp: got 2, allowed: 1 where no worker only prefills"),
    ],
)
def test_what_cannot_work_is_refused_with_the_numbers(flags: tuple[str, ...], error: str) -> None:
    with running([*SERVE, *flags]) as server:
        server.wait_for(error)
        assert server.wait() == 2
