"""Which workers there are, and what each has."""

import pytest

from lineclear.base.errors import InvariantError
from lineclear.gateway.worker_table import WorkerTable
from lineclear.protocol import wire
from tests.unit.gateway.scripted_worker import model_facts


def hello(max_running: int = 2) -> wire.WorkerHello:
    facts = model_facts(max_running=max_running)
    return wire.WorkerHello(version=wire.WIRE_VERSION, worker_id="w", life=1, pid=1, model=facts)


def test_without_workers_there_is_no_room() -> None:
    table: WorkerTable[int] = WorkerTable(4)
    assert (table.has_serving, table.most_capacity) == (False, 0)


def test_running_and_waiting_sequences_fit() -> None:
    table: WorkerTable[int] = WorkerTable(1)
    table.connect(1, hello())
    assert table.most_capacity == 3
    table.assign(1, [1, 2])
    assert table.workers[1].num_free == 1
    table.assign(1, [3])
    assert table.workers[1].num_free == 0
    assert table.finish(1, 2)
    assert table.workers[1].num_free == 1


def test_a_worker_is_found_by_its_name() -> None:
    table: WorkerTable[int] = WorkerTable(0)
    table.connect(7, hello())
    assert table.link_of("w") == 7


def test_a_draining_worker_gets_nothing() -> None:
    table: WorkerTable[int] = WorkerTable(4)
    table.connect(1, hello())
    table.workers[1].is_draining = True
    assert (table.workers[1].num_free, table.has_serving, table.most_capacity) == (0, False, 0)


def test_a_lost_worker_gives_back_its_sequences_once() -> None:
    table: WorkerTable[int] = WorkerTable(4)
    table.connect(1, hello())
    table.assign(1, [7, 8])
    assert table.lose(1) == {7, 8}
    assert table.lose(1) == set()
    assert not table.finish(1, 7)


def test_a_sequence_that_a_worker_does_not_have_does_not_end() -> None:
    table: WorkerTable[int] = WorkerTable(4)
    table.connect(1, hello())
    assert not table.finish(1, 7)


def test_more_than_fits_is_never_assigned() -> None:
    table: WorkerTable[int] = WorkerTable(0)
    table.connect(1, hello())
    with pytest.raises(InvariantError):
        table.assign(1, [1, 2, 3])
