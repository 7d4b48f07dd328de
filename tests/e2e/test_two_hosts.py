"""Prefill on another host, as far as one machine can have two: a network namespace of its own, and NIXL over TCP.

Needs the right to make network namespaces, and `pip install 'lineclear[nixl]'`; skipped by name without.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.asking import Answers, ask_all, check_invariants, settled_figures
from tests.e2e.hosts import OtherHost
from tests.e2e.processes import Program, running

pytestmark = pytest.mark.e2e

CONTROL_PORT = 7177
RANK_CONNECTED = "prefill instance both, rank [01] of 2, .* is connected"
LINKS = ("--heartbeat-seconds", "0.2", "--peer-timeout-seconds", "3")


@pytest.fixture
def other_host() -> Iterator[OtherHost]:
    if find_spec("nixl_cu13") is None:
        pytest.skip("nixl is not installed: pip install 'lineclear[nixl]'")
    try:
        host = OtherHost()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    yield host
    host.remove()


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    with ExitStack() as stack:

        def start(*arguments: str, within: tuple[str, ...] = ()) -> Program:
            return stack.enter_context(running(["-m", "lineclear", *arguments], within=within))

        yield start


def _join(control: str, role: str, worker_id: str) -> tuple[str, ...]:
    named = ("worker", "--join", control, "--role", role, "--worker-id", worker_id, "--mover", "nixl")
    return (*named, "--max-total-tokens", "32768", "--min-handoff-tokens", "64", *LINKS)


def test_kv_goes_from_host_to_host_and_a_cut_between_them_costs_nobody_the_answer(
    expected: Answers, other_host: OtherHost, start: Callable[..., Program]
) -> None:
    control = f"{other_host.here}:{CONTROL_PORT}"
    gateway = start("gateway", "--control", control, "--port", "0", *LINKS)
    url = gateway.wait_for(r"gateway on (http://[^,]+)")[1]
    decode = start(*_join(control, "decode", "here"))
    prefill = start(*_join(control, "prefill", "there"), within=other_host.within)
    decode.wait_for("prefill instance there, .* is connected")

    assert asyncio.run(ask_all(url)) == expected
    assert settled_figures(url)['lineclear_handoff_tokens_total{worker="here"}'] > 0

    decode_again = start(*_join(control, "decode", "also-here"))  # with a prefix tree that is empty
    decode_again.wait_for("prefill instance there, .* is connected")
    assert asyncio.run(ask_all(url, other_host.cut)) == expected
    decode_again.wait_for("prefill instance there, .* is lost: silent for 3.0 s")
    settled_figures(url)  # NIXL's fence is a proof against a writer that lives behind the cut
    check_invariants(url)

    other_host.mend()
    prefill.wait_for("this life ends")
    assert prefill.wait() != 0
    start(*_join(control, "prefill", "there"), within=other_host.within)
    decode_again.wait_for("prefill instance there, .* is connected")


def test_ranks_on_two_hosts_answer_as_one_and_a_cut_between_them_costs_nobody_the_answer(
    expected: Answers, other_host: OtherHost, start: Callable[..., Program]
) -> None:
    control = f"{other_host.here}:{CONTROL_PORT + 1}"
    gateway = start("gateway", "--control", control, "--port", "0", *LINKS)
    url = gateway.wait_for(r"gateway on (http://[^,]+)")[1]
    decode = start(*_join(control, "decode", "here"))
    leader = ("--cp", "2", "--cp-leader", f"{other_host.here}:{CONTROL_PORT + 2}", "--rank-timeout-seconds", "2")
    first = start(*_join(control, "prefill", "both"), *leader)
    second = start(*_join(control, "prefill", "both"), *leader, "--cp-rank", "1", within=other_host.within)
    for _ in range(2):
        decode.wait_for(RANK_CONNECTED)

    assert asyncio.run(ask_all(url)) == expected
    assert settled_figures(url)['lineclear_handoff_tokens_total{worker="here"}'] > 0

    decode_again = start(*_join(control, "decode", "also-here"))  # with a prefix tree that is empty
    for _ in range(2):
        decode_again.wait_for(RANK_CONNECTED)
    assert asyncio.run(ask_all(url, other_host.cut)) == expected
    settled_figures(url)
    check_invariants(url)
    assert first.wait() != 0
    other_host.mend()
    assert second.wait() != 0


def test_the_example_for_two_hosts_works_as_it_stands(other_host: OtherHost) -> None:  # noqa: ARG001 - skips where it cannot
    script = Path(__file__).parents[2] / "examples" / "two-hosts.sh"
    command = Path(sys.executable).with_name("lineclear")
    done = subprocess.run(
        [script],
        env={**os.environ, "LINECLEAR": str(command)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"finish_reason":"length"' in done.stdout
    (moved,) = re.findall(r'^lineclear_handoff_tokens_total\{worker="decode-here"\} (\S+)$', done.stdout, re.MULTILINE)
    assert float(moved) > 1000
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "lineclear-other" not in namespaces
