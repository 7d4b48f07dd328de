"""Faults happen when they are armed, at their phase and at no other, and leave their proof first."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.faults import Fault, FaultFolder, Faults, Phase

WORKER = """
import sys
from pathlib import Path
from tests.e2e.faults import Faults, Phase
Faults(Path(sys.argv[1]), "p0").reach(Phase.ORDER_ARRIVED, "d0/1/7")
print("survived", flush=True)
"""


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def test_a_fault_waits_for_its_phase_and_its_turn(tmp_path: Path) -> None:
    folder, faults = FaultFolder(tmp_path), Faults(tmp_path, "p0")
    number = folder.arm("p0", Phase.ABORT_ARRIVED, Fault.RESET, nth=2)
    for phase in (Phase.ORDER_ARRIVED, Phase.ABORT_ARRIVED, Phase.ORDER_ARRIVED):
        faults.reach(phase, "d0/1/1")
    assert folder.read_fired(number) is None
    faults.reach(Phase.ABORT_ARRIVED, "d0/1/2")
    faults.reach(Phase.ABORT_ARRIVED, "d0/1/3")
    faults.reach(Phase.ABORT_ARRIVED, "d0/1/4")
    fired = folder.read_fired(number)
    assert fired is not None
    assert (fired.phase, fired.fault, fired.worker_id, fired.handoff) == (
        Phase.ABORT_ARRIVED, Fault.RESET, "p0", "d0/1/2",
    )  # fmt: skip
    assert len((tmp_path / "fired.jsonl").read_text().splitlines()) == 1


def test_what_is_armed_for_another_or_disarmed_does_not_happen(tmp_path: Path) -> None:
    folder, faults = FaultFolder(tmp_path), Faults(tmp_path, "p0")
    other = folder.arm("d0", Phase.ORDER_ARRIVED, Fault.KILL)
    own = folder.arm("p0", Phase.ORDER_ARRIVED, Fault.KILL)
    folder.disarm("p0")
    faults.reach(Phase.ORDER_ARRIVED, "d0/1/1")
    assert folder.read_fired(other) is folder.read_fired(own) is None


def test_a_killed_process_leaves_the_proof_and_nothing_else(tmp_path: Path) -> None:
    folder = FaultFolder(tmp_path)
    number = folder.arm("p0", Phase.ORDER_ARRIVED, Fault.KILL)
    ended = subprocess.run([sys.executable, "-c", WORKER, str(tmp_path)], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")
    fired = folder.read_fired(number)
    assert fired is not None
    assert fired.handoff == "d0/1/7"


def test_a_stopped_process_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = FaultFolder(tmp_path)
    folder.arm("p0", Phase.ORDER_ARRIVED, Fault.STOP)
    with subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate()[0] == b"survived\n"


def test_a_reset_is_one_at_both_ends(tmp_path: Path, connection: tuple[socket.socket, socket.socket]) -> None:
    folder, faults = FaultFolder(tmp_path), Faults(tmp_path, "p0")
    faults.connections = lambda: connection[:1]
    folder.arm("p0", Phase.ORDER_ARRIVED, Fault.RESET)
    faults.reach(Phase.ORDER_ARRIVED, "d0/1/1")
    for end in connection:
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_who_is_held_waits_for_the_release(tmp_path: Path) -> None:
    folder, faults = FaultFolder(tmp_path), Faults(tmp_path, "p0")
    number = folder.arm("p0", Phase.PART_LANDED, Fault.HOLD)
    held = threading.Thread(target=faults.reach, args=(Phase.PART_LANDED, "d0/1/1"))
    held.start()
    while folder.read_fired(number) is None:
        pass
    held.join(0.05)
    assert held.is_alive()
    folder.release(number)
    held.join()
