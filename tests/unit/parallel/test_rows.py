"""Rows are gathered layer by layer, all parts of one together, and every layer's once, whatever happens."""

from functools import partial
from typing import Any

import pytest
import torch

from lineclear.base.errors import InvariantError, RankError
from lineclear.parallel.accord import OTHER_PLAN, Accord
from lineclear.parallel.communicator import Communicator
from lineclear.parallel.meter import Meter
from lineclear.parallel.rows import RowGathers
from tests.contract.rank_worlds import run_local

COUNTS = (2, 0, 1)
WIDTHS: dict[int, Any] = {3: {"latent": 2, "index": 1}, 4: {"latent": 2}}
DEADLINE_SECONDS = 20.0


def gathers(communicator: Communicator) -> RowGathers:
    return RowGathers(communicator, WIDTHS, COUNTS, torch.empty(0), Meter())


def give(rows: RowGathers, rank: int, layer: int) -> None:
    for part, width in WIDTHS[layer].items():
        rows.give(layer, part, torch.full((COUNTS[rank], width), 100.0 * rank + 10 * layer + (part == "index")))


def test_all_parts_of_all_ranks_come_in_the_order_of_ranks() -> None:
    def scenario(communicator: Communicator, _device: torch.device) -> object:
        rows = gathers(communicator)
        give(rows, communicator.rank, 3)
        give(rows, communicator.rank, 4)
        second, first = rows.take(4), rows.take(3)
        rows.require_done()
        return [{part: rows[:, 0].tolist() for part, rows in each.items()} for each in (first, second)]

    expected = [{"latent": [30, 30, 230], "index": [31, 31, 231]}, {"latent": [40, 40, 240]}]
    assert run_local(scenario, 3, DEADLINE_SECONDS) == [expected] * 3


def test_a_layer_out_of_turn_is_refused() -> None:
    def scenario(communicator: Communicator, _device: torch.device) -> object:
        rows = gathers(communicator)
        with pytest.raises(InvariantError, match="rows of layer 4 were given before those of layers"):
            give(rows, communicator.rank, 4)
        with pytest.raises(InvariantError, match="were not given"):
            rows.require_done()
        return None

    run_local(scenario, 3, DEADLINE_SECONDS)


@pytest.mark.parametrize("num_given", [0, 1, 2])
def test_who_fails_after_any_layer_leaves_all_lanes_in_step(num_given: int) -> None:
    def scenario(communicator: Communicator, _device: torch.device) -> object:
        rank = communicator.rank
        rows = gathers(communicator)
        layers = list(WIDTHS)[:num_given] if rank == 1 else list(WIDTHS)
        failures: list[str] = []
        for layer in layers:
            try:
                give(rows, rank, layer)
                rows.take(layer)
            except RankError as error:
                failures.append(str(error))
                break
        rows.fail_rest(RankError(1, "failed"))
        rows.wait_all()
        again = gathers(communicator)
        give(again, rank, 3)
        return failures, again.take(3)["latent"][:, 0].tolist()

    results = run_local(scenario, 3, DEADLINE_SECONDS)
    told = ["cp_rank 1: failed"] if num_given < 2 else []
    assert results == [(told, [30, 30, 230]), ([], [30, 30, 230]), (told, [30, 30, 230])]


def go_on(digests: dict[int, bytes], errors: dict[int, RankError], communicator: Communicator, device: Any) -> object:
    accord = Accord(communicator, device, Meter())
    try:
        accord.go_on(digests.get(communicator.rank, bytes(4)), errors.get(communicator.rank))
    except RankError as error:
        told = str(error)
    else:
        told = None
    accord.go_on(bytes(4))
    return told


def test_ranks_go_on_together_or_not_at_all() -> None:
    assert run_local(partial(go_on, {}, {}), 3, DEADLINE_SECONDS) == [None] * 3
    one = {2: RankError(2, "no")}
    assert run_local(partial(go_on, {}, one), 3, DEADLINE_SECONDS) == ["cp_rank 2: no"] * 3
    two = {2: RankError(2, "no"), 1: RankError(1, "neither")}
    assert run_local(partial(go_on, {}, two), 3, DEADLINE_SECONDS) == ["cp_rank 1: neither"] * 3


def test_a_rank_with_another_plan_is_named() -> None:
    other = partial(go_on, {2: b"othr"}, {})
    assert run_local(other, 3, DEADLINE_SECONDS) == [f"cp_rank 2: {OTHER_PLAN}"] * 3
