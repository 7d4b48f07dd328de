import numpy as np
import pytest

from lineclear.transport.movers.copying import LONG_RUN_BYTES, copy_runs

SIZE = 3 * LONG_RUN_BYTES


@pytest.mark.parametrize("num_bytes", [1, LONG_RUN_BYTES - 1, LONG_RUN_BYTES, LONG_RUN_BYTES + 1])
def test_short_and_long_runs_are_copied(num_bytes: int) -> None:
    source, destination = memoryview(np.random.default_rng(1).bytes(SIZE)), memoryview(bytearray(SIZE))
    runs = np.array([[5, 7, num_bytes]], dtype=np.int64)
    assert copy_runs(source, destination, runs, lambda: False)
    assert bytes(destination) == bytes(7) + bytes(source[5 : 5 + num_bytes]) + bytes(SIZE - 7 - num_bytes)


def test_a_copy_is_stopped_between_runs() -> None:
    source, destination = memoryview(b"\1" * SIZE), memoryview(bytearray(SIZE))
    runs = np.array([[0, 0, LONG_RUN_BYTES], [0, LONG_RUN_BYTES, LONG_RUN_BYTES]], dtype=np.int64)
    looks = iter((False, True))
    assert not copy_runs(source, destination, runs, lambda: next(looks))
    assert bytes(destination).count(1) == LONG_RUN_BYTES
