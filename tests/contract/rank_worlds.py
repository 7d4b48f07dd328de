"""Ranks that run a scenario together: threads of this process, or processes with gloo or NCCL between them."""

import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.distributed import TCPStore

from lineclear.parallel.communicator import Communicator
from lineclear.parallel.gloo_wire import GlooWire
from lineclear.parallel.local_wire import local_wires
from lineclear.parallel.nccl_wire import NcclWire
from lineclear.parallel.rank_communicator import RankCommunicator

Scenario = Callable[[Communicator, torch.device], Any]

LOST = "this rank was killed or stopped"
JOIN_SECONDS = 120.0
"""After which a test gives up on ranks that hang."""


def run_local(
    scenario: Scenario, size: int, deadline: float, *, deadline_of_rank: Mapping[int, float] | None = None
) -> list[Any]:
    """Run it on threads; return each rank's result."""
    results: list[Any] = [LOST] * size
    wires = local_wires(size, deadline)
    for rank, seconds in (deadline_of_rank or {}).items():
        wires[rank]._deadline_seconds = seconds

    def run(rank: int) -> None:
        with closing(RankCommunicator(wires[rank], torch.device("cpu"))) as communicator:
            results[rank] = scenario(communicator, torch.device("cpu"))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
        assert not thread.is_alive(), "a rank hangs"
    return results


def run_processes(kind: str, scenario: Scenario, size: int, deadline: float, lost: Sequence[int] = ()) -> list[Any]:
    """Run it on processes; ranks in `lost` are expected to end or stand still without a result."""
    context = mp.get_context("spawn")
    results: mp.Queue[Any] = context.Queue()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        context.Process(
            target=_rank_process, args=(kind, rank, size, store.port, deadline, scenario, results), daemon=True
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    found: list[Any] = [LOST] * size
    try:
        for _ in range(size - len(lost)):
            rank, result = results.get(timeout=JOIN_SECONDS)
            found[rank] = result
    except queue.Empty:
        raise AssertionError(f"a rank hangs or died; so far: {found}") from None
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
    return found


def _rank_process(
    kind: str, rank: int, size: int, port: int, deadline: float, scenario: Scenario, results: "mp.Queue[Any]"
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, timeout=timedelta(seconds=JOIN_SECONDS))
    device = torch.device("cpu")
    if kind == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    wire = (NcclWire if kind == "nccl" else GlooWire)(store, rank, size, deadline)
    with closing(RankCommunicator(wire, device)) as communicator:
        result = scenario(communicator, device)
        results.put((rank, result))
        _wait_until_all_have_a_result(store, size)


def _wait_until_all_have_a_result(store: TCPStore, size: int) -> None:
    """Leave when the test kills this process: nobody's end is to be taken for a failure of the scenario."""
    store.wait([f"never-{size}"], timedelta(seconds=JOIN_SECONDS))
