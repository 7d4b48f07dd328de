"""One contract for every communicator: in this process, over gloo, over NCCL."""

import threading
from typing import Any

import pytest
import torch

from lineclear.base.errors import RankError, RankLostError
from lineclear.parallel.communicator import Communicator, Lane
from lineclear.parallel.status import STATUS_BYTES, decode_status, encode_status
from tests.contract import rank_scenarios
from tests.contract.rank_worlds import LOST, run_local, run_processes

KINDS = ["local", "gloo", pytest.param("nccl", marks=pytest.mark.cuda)]
SIZE = 3
DEADLINE_SECONDS = 20.0
SHORT_DEADLINE_SECONDS = 2.0


@pytest.fixture(scope="module", params=KINDS)
def seen(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """What each rank has seen in all scenarios."""
    kind = request.param
    if kind == "nccl" and torch.cuda.device_count() < SIZE:
        pytest.skip(f"NCCL needs {SIZE} CUDA devices; there are {torch.cuda.device_count()}")
    if kind == "local":
        return run_local(rank_scenarios.several, SIZE, DEADLINE_SECONDS)
    return run_processes(kind, rank_scenarios.several, SIZE, DEADLINE_SECONDS)


@pytest.mark.parametrize("scenario", [each.__name__ for each in rank_scenarios.SCENARIOS])
def test_every_rank_sees_what_it_must(seen: list[dict[str, Any]], scenario: str) -> None:
    assert [rank[scenario] for rank in seen] == [rank_scenarios.expected(scenario, SIZE)] * SIZE


@pytest.mark.parametrize("scenario", [rank_scenarios.a_killed_rank, rank_scenarios.a_stopped_rank])
def test_a_lost_process_is_an_error_of_every_other_within_the_deadline(scenario: Any) -> None:
    results = run_processes("gloo", scenario, SIZE, SHORT_DEADLINE_SECONDS, lost=[SIZE - 1])
    lost = ("RankLostError", SIZE - 1)
    assert results == [[None, lost, lost, lost]] * (SIZE - 1) + [LOST]


def test_a_thread_that_stands_still_is_an_error_of_every_other_within_the_deadline() -> None:
    over = threading.Event()
    ended = threading.Semaphore(0)

    def stand_still(communicator: Communicator, _device: torch.device) -> object:
        rows, into = torch.ones(1, 1), torch.zeros(SIZE, 1)
        if communicator.rank == 0:
            for _ in range(SIZE - 1):
                ended.acquire()
            over.set()
            return None
        try:
            return rank_scenarios.seen_of(communicator.gather(Lane.ROWS, rows, into, [1] * SIZE))
        finally:
            ended.release()
            over.wait()

    first, *others = run_local(stand_still, SIZE, 0.3)
    assert first is None
    assert others == [("RankLostError", 0, "not heard of for 0.3 s")] * (SIZE - 1)


def test_a_rank_that_closes_is_an_error_at_once() -> None:
    def leave(communicator: Communicator, _device: torch.device) -> object:
        if communicator.rank == 0:
            return None
        return rank_scenarios.seen_of(communicator.broadcast(Lane.ROWS, 0, torch.zeros(1), rank_scenarios.never))

    assert run_local(leave, 2, 60.0) == [None, ("RankLostError", 0, "it has closed its wires")]


def test_who_learns_of_a_lost_rank_tells_the_others_its_name() -> None:
    """Rank 1 waits for rank 2 alone, and rank 0 for rank 1: rank 0 hears of rank 2."""
    told = threading.Event()

    def chain(communicator: Communicator, _device: torch.device) -> object:
        if communicator.rank == 2:
            told.wait()
            return None
        buffer = torch.zeros(1)
        if communicator.rank == 1:
            first = rank_scenarios.seen_of(communicator.broadcast(Lane.INDEX, 2, buffer, rank_scenarios.never))
            second = rank_scenarios.seen_of(rank_scenarios.broadcast_value(communicator, Lane.LATENT, 1, buffer, 1))
            assert first == second
            return first
        for _ in range(20):  # rank 0's own deadline is no shorter than rank 1's: it asks until it is told
            seen = rank_scenarios.seen_of(communicator.broadcast(Lane.LATENT, 1, buffer, rank_scenarios.never))
            if seen is not None:
                told.set()
                return seen
        return None

    results = run_local(chain, 3, 60.0, deadline_of_rank={1: 0.2})
    assert results[0] == results[1] == ("RankLostError", 2, "not heard of for 0.2 s")


def test_a_status_says_what_it_was_given() -> None:
    assert decode_status(encode_status(None)) is None
    long = RankLostError(300, "ü" * STATUS_BYTES)
    for error in (RankError(2, "no: \0 no"), RankError(0, ""), long):
        status = encode_status(error)
        decoded = decode_status(status)
        assert len(status) == STATUS_BYTES
        assert type(decoded) is type(error)
        assert decoded is not None
        assert decoded.cp_rank == error.cp_rank
        assert error.reason.startswith(decoded.reason.rstrip("\ufffd"))
