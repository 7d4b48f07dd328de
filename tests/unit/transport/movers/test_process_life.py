import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lineclear.transport.movers import process_life
from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.process_life import ProcessLife, ProcessWatch, own_life


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with process:
        yield process
        process.kill()


def life_of(pid: int) -> ProcessLife:
    return msgspec.structs.replace(own_life(), pid=pid, start_ticks=process_life._start_ticks(pid))


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_this_process_has_not_ended() -> None:
    watch = ProcessWatch(own_life())
    assert not watch.has_ended()
    watch.close()
    assert not watch.has_ended()


def test_a_killed_process_has_ended_before_anybody_collects_it(child: subprocess.Popen[bytes]) -> None:
    watch = ProcessWatch(life_of(child.pid))
    assert not watch.has_ended()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert watch.has_ended()
    watch.close()
    assert watch.has_ended(), "what is known stays known"


def test_a_frozen_process_has_not_ended(child: subprocess.Popen[bytes]) -> None:
    watch = ProcessWatch(life_of(child.pid))
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    assert not watch.has_ended()
    watch.close()


def test_a_life_that_is_over_is_not_watched(child: subprocess.Popen[bytes]) -> None:
    life = life_of(child.pid)
    child.kill()
    child.wait()
    with pytest.raises(MoverError, match=r"cannot be watched|has ended"):
        ProcessWatch(life)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"start_ticks": 1}, "its number may be somebody else's"),
        ({"pid_namespace": 1}, "another host or container"),
        ({"boot_id": "?"}, "another host or container"),
    ],
)
def test_the_number_alone_is_no_identity(change: dict[str, object], reason: str) -> None:
    before = num_descriptors()
    with pytest.raises(MoverError, match=reason):
        ProcessWatch(msgspec.structs.replace(own_life(), **change))
    assert num_descriptors() == before
