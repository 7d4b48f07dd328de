"""What is true of NIXL only. Whether it holds the contract is asked in `tests/contract`."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lineclear.engine.bell import wait_readable
from lineclear.transport.movers.kinds import open_mover
from lineclear.transport.movers.mover import Completion, MoverError, Outcome, Span
from lineclear.transport.movers.nixl import NixlMover
from lineclear.transport.movers.nixl_agent import NixlAgent
from lineclear.transport.movers.nixl_memory import NixlMemory
from lineclear.transport.movers.threaded_writer import ThreadedWriter

SIZE = 64 << 20

ENDS_IN_FLIGHT = f"""
import sys, time
from lineclear.transport.movers.mover import Span
from lineclear.transport.movers.nixl import NixlMover
mover = NixlMover()
writer = mover.open_writer(mover.open_memory({SIZE}))
print(writer.identity.hex(), flush=True)
writer.post(1, bytes.fromhex(sys.stdin.readline()), [Span(0, 0, {SIZE})])
time.sleep(0.02)
sys.exit(75)
"""


@dataclass
class Ends:
    memory: NixlMemory
    source: NixlMemory
    writer: ThreadedWriter


@pytest.fixture
def mover() -> NixlMover:
    try:
        mover = open_mover("nixl")
    except MoverError as error:
        pytest.skip(f"nixl is not installed, or cannot be used here: {error}")
    assert isinstance(mover, NixlMover)
    return mover


@pytest.fixture
def ends(mover: NixlMover) -> Iterator[Ends]:
    source = mover.open_memory(SIZE)
    source.buffer[:] = b"\1" * SIZE
    ends = Ends(mover.open_memory(SIZE), source, mover.open_writer(source))
    yield ends
    ends.writer.close()
    ends.memory.close()
    ends.source.close()


def answer(ends: Ends) -> Completion:
    assert wait_readable([ends.writer.fileno()], 20.0)
    (completion,) = ends.writer.poll()
    return completion


def test_a_memory_has_no_door_for_a_writer_that_it_has_not_admitted(ends: Ends) -> None:
    ends.writer.post(1, ends.memory.key, [Span(0, 0, 1)])
    completion = answer(ends)
    assert completion == Completion(1, Outcome.FAILED)
    assert "no door" in completion.reason


def test_a_life_is_admitted_once_also_after_its_fence(ends: Ends) -> None:
    admission = ends.memory.admit(ends.writer.identity)
    for _ in range(2):
        with pytest.raises(MoverError, match="admitted before"):
            ends.memory.admit(ends.writer.identity)
        assert admission.fence()


def test_a_fenced_writer_is_told_unknown_and_has_no_door_any_more(ends: Ends) -> None:
    admission = ends.memory.admit(ends.writer.identity)
    key = ends.memory.key
    ends.writer.post(1, key, [Span(0, 0, SIZE)])
    while not ends.memory.buffer[0]:
        pass
    assert admission.fence()
    assert len(ends.memory.key) < len(key)
    assert answer(ends) == Completion(1, Outcome.UNKNOWN)
    ends.writer.post(2, key, [Span(0, 0, 1)])
    assert answer(ends) == Completion(2, Outcome.FAILED), "a broken connection is not used again"


def test_the_address_alone_cuts_a_writer_off(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX may do what it likes: here its agent goes on receiving, and nothing of it reaches the memory."""
    admission = ends.memory.admit(ends.writer.identity)
    ends.writer.post(1, ends.memory.key, [Span(0, 0, SIZE)])
    while not ends.memory.buffer[0]:
        pass
    with monkeypatch.context() as patch:
        patch.setattr(NixlAgent, "destroy", lambda _: True)
        assert admission.fence()
    before = bytes(ends.memory.buffer)
    assert b"\0" in before, "the write was over before the fence"
    assert answer(ends) == Completion(1, Outcome.DONE), "the agent received it all"
    time.sleep(0.05)
    assert bytes(ends.memory.buffer) == before
    admission._agent.destroy()


def test_an_agent_that_is_still_referred_to_is_not_destroyed(ends: Ends) -> None:
    admission = ends.memory.admit(ends.writer.identity)
    held = admission._agent._agent
    assert not admission.fence(), "the progress thread may still run"
    del held
    assert admission.fence()


def test_foreign_identities_and_keys_are_refused(ends: Ends) -> None:
    shm = open_mover("shm")
    memory = shm.open_memory(4096)
    with pytest.raises(MoverError, match="no identity of a nixl writer"):
        ends.memory.admit(memory.key)
    ends.writer.post(1, memory.key, [Span(0, 0, 1)])
    assert answer(ends).outcome is Outcome.FAILED
    memory.close()


def test_a_process_that_ends_with_a_write_in_flight_ends_as_it_wants(mover: NixlMover) -> None:
    """And not by SIGABRT, from a thread that is inside NIXL while the interpreter goes."""
    memory = mover.open_memory(SIZE)
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", ENDS_IN_FLIGHT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            admission = memory.admit(bytes.fromhex(process.stdout.readline()))
            process.stdin.write(memory.key.hex() + "\n")
            process.stdin.flush()
            assert process.wait(20.0) == 75
        assert admission.fence()
    memory.close()
