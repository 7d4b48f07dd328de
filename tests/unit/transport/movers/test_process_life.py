import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.process_life import ProcessLife, ProcessWatch, is_of_this_host, own_life

LIFE_OF_A_CHILD = "import sys, time; print(open('/proc/self/stat').read(), flush=True); sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", LIFE_OF_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def life_of(child: subprocess.Popen[str]) -> ProcessLife:
    assert child.stdout is not None
    start_ticks = int(child.stdout.readline().rpartition(")")[2].split()[19])
    return msgspec.structs.replace(own_life(), pid=child.pid, start_ticks=start_ticks)


def test_this_process_lives_on_this_host() -> None:
    assert own_life() == own_life()
    assert is_of_this_host(own_life())
    watch = ProcessWatch(own_life())
    assert not watch.has_ended()
    watch.close()


def test_an_end_is_seen_only_when_it_is_one(child: subprocess.Popen[str]) -> None:
    watch = ProcessWatch(life_of(child))
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert not watch.has_ended(), "a stopped process has not ended"
    child.kill()
    child.wait()
    assert watch.has_ended()
    watch.close()
    watch.close()
    assert watch.has_ended(), "what is known stays known"


def test_an_end_that_nobody_has_collected_is_one(child: subprocess.Popen[str]) -> None:
    watch = ProcessWatch(life_of(child))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert watch.has_ended()
    watch.close()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start_ticks": 1}, "somebody else's"),
        ({"pid": 2**22 + 1}, "cannot be watched"),
        ({"boot_id": "another"}, "another host or container"),
        ({"pid_namespace": 1}, "another host or container"),
    ],
)
def test_a_life_that_is_not_there_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(MoverError, match="host" if "host" in reason else reason):
        ProcessWatch(msgspec.structs.replace(own_life(), **changes))
