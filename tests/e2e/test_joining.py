"""Gateway and workers that are started one by one: they find each other, and come and go while requests run."""

import asyncio
import json
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from lineclear.bundled import checkpoint_path
from tests.e2e.asking import Answers, ask_all, check_invariants, figures_once, settled_figures
from tests.e2e.processes import PATIENCE_SECONDS, Program, running

pytestmark = pytest.mark.e2e


class Cluster:
    """A gateway on loopback, and what has joined it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.control = free_address()
        self.gateway = self.start("gateway", "--control", self.control, "--port", "0")
        self.url = self.gateway.wait_for(r"gateway on (http://[^,]+)")[1]

    def join(self, role: str, worker_id: str, *options: str) -> Program:
        named = ("--role", role, "--worker-id", worker_id, "--max-total-tokens", "32768")
        worker = self.start("worker", "--join", self.control, *named, "--min-handoff-tokens", "64", *options)
        worker.wait_for(f"{worker_id}: joined")
        return worker

    def start(self, *arguments: str) -> Program:
        return self._stack.enter_context(running(["-m", "lineclear", *arguments]))


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x00\x00\x03abc", b"\xff" * 64])
def test_a_stranger_at_the_control_port_is_cut_and_counted(cluster: Cluster, data: bytes) -> None:
    host, port = cluster.control.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as stranger:
        stranger.sendall(data)
        while stranger.recv(4096):
            pass
    figures_once(cluster.url, lambda figures: figures["lineclear_worker_links_malformed_total"] == 1)


@pytest.mark.parametrize("mover", ["shm", "nixl"])
def test_workers_that_joined_answer_as_one_process_does(expected: Answers, cluster: Cluster, mover: str) -> None:
    if mover == "nixl" and find_spec("nixl_cu13") is None:
        pytest.skip("nixl is not installed: pip install 'lineclear[nixl]'")
    decode = cluster.join("decode", "d0", "--mover", mover)
    cluster.join("prefill", "p0", "--mover", mover)
    decode.wait_for("prefill instance p0, .* is connected")
    assert asyncio.run(ask_all(cluster.url)) == expected
    figures = settled_figures(cluster.url)
    assert figures['lineclear_handoff_tokens_total{worker="d0"}'] > 0
    check_invariants(cluster.url)


@pytest.mark.parametrize("asked", [0, 1])
def test_ranks_that_are_started_one_by_one_find_each_other_and_leave_together(
    expected: Answers, cluster: Cluster, asked: int
) -> None:
    decode = cluster.join("decode", "d0")
    leader = free_address()
    named = ("--role", "prefill", "--join", cluster.control, "--max-total-tokens", "32768", "--cp", "2")
    ranks = [
        cluster.start("worker", *named, "--cp-rank", str(rank), "--cp-leader", leader, "--worker-id", f"p{rank}")
        for rank in (1, 0)
    ][::-1]
    ranks[0].wait_for(f"p0: joined {cluster.control}")
    ranks[1].wait_for("p1: rank 1 of 2: ready")
    decode.wait_for("prefill instance p0, rank 1 of 2, .* is connected")
    assert asyncio.run(ask_all(cluster.url)) == expected
    figures = settled_figures(cluster.url)
    assert figures['lineclear_handoff_tokens_total{worker="d0"}'] > 0
    check_invariants(cluster.url)
    ranks[asked].signal(signal.SIGTERM)
    assert [rank.wait() for rank in ranks] == [0, 0]
    assert asyncio.run(ask_all(cluster.url)) == expected
    assert settled_figures(cluster.url)["lineclear_workers_lost_total"] == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--cp", "3"), r"cp: 2 here, 3 there"),
        (("--cp", "2", "--block-size", "8"), r"block_size: got '8 on cp_rank 1', allowed: 16, as on cp_rank 0"),
        (("--cp", "2", "--kv-layout", "replicated"), r"kv_layout: got 'replicated on cp_rank 1'"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused_with_the_difference(
    cluster: Cluster, options: tuple[str, ...], told: str
) -> None:
    leader = free_address()
    named = ("--role", "prefill", "--join", cluster.control, "--max-total-tokens", "8192", "--cp-leader", leader)
    cluster.start("worker", *named, "--cp", "2", "--cp-rank", "0")
    other = cluster.start("worker", *named, "--cp-rank", "1", *options)
    assert other.wait_for(told)
    assert other.wait() == 2


def test_workers_leave_when_they_are_done_and_others_take_over(expected: Answers, cluster: Cluster) -> None:
    leaving = [cluster.join("decode", "d0"), cluster.join("prefill", "p0")]
    cluster.join("decode", "d1")
    cluster.join("prefill", "p1")

    def leave() -> None:
        for worker in leaving:
            worker.signal(signal.SIGTERM)

    assert asyncio.run(ask_all(cluster.url, leave)) == expected
    assert [worker.wait() for worker in leaving] == [0, 0]
    assert all(worker.output[-1].endswith(": left\n") for worker in leaving)
    figures = settled_figures(cluster.url)
    assert figures["lineclear_workers_lost_total"] == 0
    check_invariants(cluster.url)
    cluster.gateway.signal(signal.SIGINT)
    assert cluster.gateway.wait() == 0


def test_a_gateway_that_is_started_again_finds_its_workers(expected: Answers, cluster: Cluster) -> None:
    decode = cluster.join("decode", "d0")
    cluster.join("prefill", "p0")
    decode.wait_for("prefill instance p0, .* is connected")
    cluster.gateway.signal(signal.SIGKILL)
    cluster.gateway.wait()
    again = cluster.start("gateway", "--control", cluster.control, "--port", "0")
    url = again.wait_for(r"gateway on (http://[^,]+)")[1]
    again.wait_for("workers: d0; prefill: p0")
    assert asyncio.run(ask_all(url)) == expected


def test_a_worker_of_another_kind_is_refused_with_the_difference(cluster: Cluster) -> None:
    decode = cluster.join("decode", "d0")
    prefill = cluster.join("prefill", "p0", "--block-size", "8")
    told = r"block size: (\d+) here, (\d+) there"
    assert decode.wait_for(told).groups() == ("16", "8")
    assert prefill.wait_for(told)


def test_a_worker_that_would_answer_differently_ends_with_the_difference(expected: Answers, cluster: Cluster) -> None:
    cluster.join("colocated", "c0")
    other = cluster.join("colocated", "c1", "--dtype", "bf16")
    assert other.wait() == 2
    error = "lineclear: error: the gateway takes no worker that answers differently: dtype: fp32 here, bf16 there"
    assert error in other.text
    cluster.gateway.wait_for("worker c1, life .*, is refused: .*: dtype: fp32 here, bf16 there")
    assert asyncio.run(ask_all(cluster.url)) == expected


def test_a_worker_with_a_model_that_is_not_the_gateways_ends_with_the_difference(
    cluster: Cluster, tmp_path: Path
) -> None:
    other_model = tmp_path / "other"
    shutil.copytree(checkpoint_path(), other_model)
    config = json.loads((other_model / "config.json").read_text())
    (other_model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 2 * config["rms_norm_eps"]}))
    worker = cluster.join("colocated", "c0", "--model", str(other_model))
    assert worker.wait() == 2
    assert re.search(r"answers differently: model: \w+ here, \w+ there", worker.text)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("worker", "--join", "nowhere"), "join: got 'nowhere', allowed: HOST:PORT"),
        (("worker", "--join", "127.0.0.1:1", "--role", "chef"), "role: got 'chef', allowed: one of colocated, prefill"),
        (("worker", "--role", "decode", "--cp", "2"), "cp: got 2, allowed: 1 with --role decode"),
        (("worker", "--peer-host", "x"), "peer_host: got 'x', allowed: none with --role colocated"),
        (("gateway", "--control", "8000"), "control: got '8000', allowed: HOST:PORT"),
        (("worker",), "join: got None, allowed: HOST:PORT"),
        (("gateway",), "control: got None, allowed: HOST:PORT"),
    ],
)
def test_what_cannot_be_joined_is_refused(arguments: tuple[str, ...], error: str) -> None:
    with running(["-m", "lineclear", *arguments]) as program:
        assert program.wait() == 2
        assert error in program.text
