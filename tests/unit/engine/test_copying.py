import itertools
from collections.abc import Callable

import numpy as np
import pytest

from lineclear.engine import copying
from lineclear.engine.copying import copy_runs

SOURCE = memoryview(np.random.default_rng(0).bytes(4096))


def never() -> bool:
    return False


def stop_at_look(number: int) -> Callable[[], bool]:
    looks = itertools.count(1)
    return lambda: next(looks) >= number


@pytest.fixture(params=["short runs", "long runs in pieces"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "short runs":
        monkeypatch.setattr(copying, "YIELD_BYTES", 1)
        return
    monkeypatch.setattr(copying, "LONG_RUN_BYTES", 100)
    monkeypatch.setattr(copying, "PIECE_BYTES", 64)


@pytest.mark.usefixtures("sizes")
def test_exactly_the_runs_are_copied() -> None:
    runs = np.array([[0, 4000, 96], [1000, 0, 1000], [7, 2000, 99], [500, 2100, 130]])
    expected = bytearray(4096)
    for start, to, num_bytes in runs.tolist():
        expected[to : to + num_bytes] = SOURCE[start : start + num_bytes]
    destination = bytearray(4096)
    assert copy_runs(SOURCE, memoryview(destination), runs, never)
    assert destination == expected


@pytest.mark.usefixtures("sizes")
def test_a_copy_that_is_stopped_says_that_it_is_not_complete() -> None:
    runs = np.array([[0, 0, 150], [150, 150, 150], [300, 300, 150]])
    destination = bytearray(4096)
    assert not copy_runs(SOURCE, memoryview(destination), runs, stop_at_look(2))
    assert destination[300:] == bytes(4096 - 300)


def test_a_long_run_is_stopped_between_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LONG_RUN_BYTES", 100)
    monkeypatch.setattr(copying, "PIECE_BYTES", 64)
    destination = bytearray(4096)
    assert not copy_runs(SOURCE, memoryview(destination), np.array([[0, 0, 4096]]), stop_at_look(3))
    assert destination == SOURCE[:128].tobytes() + bytes(4096 - 128)
