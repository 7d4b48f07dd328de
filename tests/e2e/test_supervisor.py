"""The supervisor with real processes that stand in for gateway and worker."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.processes import Program, children_by_command, descendants, running, wait_for_end

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc and pidfd"),
]

SERVICE = str(Path(__file__).with_name("stand_in_service.py"))
READY = r"lineclear ready on (http://\S+)"


@contextmanager
def service(**behaviour: str) -> Iterator[Program]:
    environment = {f"STAND_IN_{name.upper()}": value for name, value in behaviour.items()}
    with running([SERVICE], environment) as program:
        yield program


def test_the_first_stop_signal_ends_everything_in_order() -> None:
    with service() as program:
        assert program.wait_for(READY)[1] == "http://127.0.0.1:4242"
        children = children_by_command(program.process.pid)
        assert set(children) == {"gateway", "decode-0", "prefill-0"}
        program.signal(signal.SIGINT)
        assert program.wait() == 0
        for pid in children.values():
            wait_for_end(pid)
        assert "finishing running requests" in program.text
        assert "died" not in program.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_stop_signals_do_the_same(number: int) -> None:
    with service() as program:
        program.wait_for(READY)
        program.signal(number)
        assert program.wait() == 0


def test_a_second_stop_signal_ends_everything_at_once() -> None:
    with service(gateway="stubborn") as program:
        program.wait_for(READY)
        children = children_by_command(program.process.pid)
        program.signal(signal.SIGINT)
        program.wait_for("finishing running requests")
        program.signal(signal.SIGINT)
        assert program.wait() == 130
        for pid in children.values():
            wait_for_end(pid)


@pytest.mark.parametrize("name", ["gateway", "decode-0", "prefill-0"])
def test_a_killed_process_is_started_again(name: str) -> None:
    with service() as program:
        url = program.wait_for(READY)[1]
        before = children_by_command(program.process.pid)
        os.kill(before[name], signal.SIGKILL)
        program.wait_for(rf"{name}: died \(killed by SIGKILL\); starting life 2")
        if name == "gateway":
            assert program.wait_for(READY)[1] == url
        else:
            program.wait_for(READY)
        after = children_by_command(program.process.pid)
        assert after[name] != before[name]
        assert len(set(after.values()) & set(before.values())) == 2


def test_a_worker_that_its_gateway_has_lost_for_long_is_replaced() -> None:
    with service() as program:
        program.wait_for(READY)
        children = children_by_command(program.process.pid)
        os.kill(children["gateway"], signal.SIGUSR1)
        program.wait_for("does not answer")
        program.wait_for(r"decode-0: died \(killed by SIGKILL\); starting life 2")
        wait_for_end(children["decode-0"])


def test_no_process_outlives_a_killed_supervisor() -> None:
    with service() as program:
        program.wait_for(READY)
        below = descendants(program.process.pid)
        assert len(below) == 3
        program.signal(signal.SIGKILL)
        program.wait()
        for pid in below:
            wait_for_end(pid)


def test_a_crash_loop_ends_the_service_with_an_error() -> None:
    with service(decode="crash") as program:
        program.wait_for("starting life 3")
        program.wait_for(r"decode-0: died \(exit code 1\) after 2 restarts in a row; giving up")
        below = descendants(program.process.pid)
        assert program.wait() == 1
        for pid in below:
            wait_for_end(pid)


def test_a_users_mistake_is_not_repeated() -> None:
    with service(decode="refuse") as program:
        assert program.wait() == 2
        assert "starting life" not in program.text


def test_the_error_is_the_last_word_although_the_other_process_still_loads() -> None:
    with service(gateway="fail", decode="load") as program:
        assert program.wait() == 2
    assert program.output[-1] == "lineclear: error: port: got 4242, allowed: a port that is free\n"
    assert program.text.count("error") == 1
    assert "starting life" not in program.text


def test_a_process_that_reports_nonsense_is_replaced() -> None:
    with service(decode="babble") as program:
        program.wait_for(r"decode-0: died \(killed by SIGKILL\); starting life 2")
        program.wait_for(READY)
