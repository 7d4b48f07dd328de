"""Waiting for descriptors."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from lineclear.engine.bell import Bell, wait_readable


@pytest.fixture
def bell() -> Iterator[Bell]:
    with closing(Bell()) as made:
        yield made


def test_a_bell_is_readable_from_ring_to_silence(bell: Bell) -> None:
    assert not wait_readable([bell.fileno()], 0)
    bell.ring()
    bell.ring()
    assert wait_readable([bell.fileno()])
    bell.silence()
    assert not wait_readable([bell.fileno()], 0)


def test_one_of_many_is_enough(bell: Bell) -> None:
    with closing(Bell()) as other:
        other.ring()
        assert wait_readable([bell.fileno(), other.fileno()])


def test_a_process_may_have_many_descriptors(bell: Bell) -> None:
    high = fcntl.fcntl(bell.fileno(), fcntl.F_DUPFD, 1100)
    try:
        bell.ring()
        assert wait_readable([high])
    finally:
        os.close(high)
