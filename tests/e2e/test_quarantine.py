"""A prefill process that stands still for good, which nobody can prove gone: its blocks wait for an operator's word."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.e2e.asking import Answers, ask_all, check_invariants, settled_figures
from tests.e2e.processes import PATIENCE_SECONDS
from tests.e2e.test_joining import Cluster

pytestmark = pytest.mark.e2e

QUICK = ("--heartbeat-seconds", "0.2", "--peer-timeout-seconds", "4")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


def quarantine(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    action, *options = arguments
    command = [sys.executable, "-m", "lineclear", "quarantine", action, "--url", cluster.url, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


def test_blocks_of_a_process_that_stands_still_wait_for_an_operators_word(expected: Answers, cluster: Cluster) -> None:
    decode = cluster.join("decode", "d0", *QUICK)
    prefill = cluster.join("prefill", "p0", *QUICK)
    decode.wait_for("prefill instance p0, .* is connected")

    def stand_still() -> None:
        prefill.signal(signal.SIGSTOP)  # nobody supervises it, and its memory is shared: only its end would be a proof

    assert asyncio.run(ask_all(cluster.url, stand_still)) == expected
    (waiting,) = httpx.get(f"{cluster.url}/quarantine", timeout=PATIENCE_SECONDS).json()["quarantine"]
    assert (waiting["worker"], waiting["prefill"]) == ("d0", "p0")
    assert waiting["blocks"] > 0
    listed = quarantine(cluster, "list")
    assert re.search(rf"d0 +p0 +0 +{waiting['life']} +{waiting['handoffs']} +{waiting['blocks']} ", listed.stdout)

    life = ("--worker", "d0", "--prefill", "p0", "--life", str(waiting["life"]))
    assert quarantine(cluster, "release", *life).returncode == 2
    other = ("--worker", "d0", "--prefill", "p0", "--life", "1", "--it-can-write-no-more")
    assert "no block of d0 waits for" in quarantine(cluster, "release", *other).stderr
    assert json.loads(httpx.get(f"{cluster.url}/quarantine").text)["quarantine"][0]["blocks"] == waiting["blocks"]

    released = quarantine(cluster, "release", *life, "--it-can-write-no-more")
    assert released.stdout == f"{waiting['blocks']} blocks of d0 are out of quarantine\n"
    decode.wait_for("an operator vouches that prefill instance p0")
    assert quarantine(cluster, "list").stdout == "nothing is in quarantine\n"
    figures = settled_figures(cluster.url)
    assert figures['lineclear_handoff_blocks_quarantined{worker="d0"}'] == 0
    assert figures['lineclear_handoff_blocks_vouched_total{worker="d0"}'] == waiting["blocks"]
    prefill.signal(signal.SIGKILL)  # it never runs again: the word was true
    cluster.gateway.wait_for("worker p0, .* is lost")
    check_invariants(cluster.url)
    assert asyncio.run(ask_all(cluster.url)) == expected
