"""A child process by itself: what it does when its supervisor's pipe ends, and when there is no supervisor."""

import json
import subprocess
import sys

import pytest

from lineclear.cli.child_process import describe_exit
from lineclear.cli.exit_codes import EXIT_ORPHANED

CHILD = """
import signal, sys
from lineclear.cli import child
from lineclear.transport.reports import GatewayListening
child._die_with_parent = lambda: None
start, report = child.begin_child(child.GatewayStart)
print("noise on stdout")
report(GatewayListening(start.control_endpoint, start.config.gateway.port))
signal.pause()
"""


def start_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_a_child_reports_and_ends_with_the_pipe() -> None:
    with start_child() as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b'{"config": {"gateway": {"port": 9}}, "control_endpoint": "unix:x"}\n')
        child.stdin.flush()
        assert json.loads(child.stdout.readline()) == {"type": "GatewayListening", "host": "unix:x", "port": 9}
        child.stdin.close()
        assert child.wait(60) == EXIT_ORPHANED
        assert child.stdout.read() == b""


def test_a_child_without_a_supervisor_says_what_it_is() -> None:
    with start_child() as child:
        _, errors = child.communicate(b"", 60)
        assert child.returncode != 0
        assert b"is for children of" in errors


def test_exit_codes_in_words() -> None:
    assert describe_exit(1) == "exit code 1"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-99) == "killed by signal 99"


@pytest.mark.parametrize("command", ["gateway", "worker"])
def test_a_child_that_is_started_by_hand_explains_itself(command: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "lineclear", command, "--child", "x"],
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert "is for children of" in run.stderr
