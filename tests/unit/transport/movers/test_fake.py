import pytest

from lineclear.transport.movers.fake import FakeMemory, FakeMover, FakeWriter
from lineclear.transport.movers.mover import Completion, MoverError, Outcome, Span

DONE, FAILED, UNKNOWN = Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN


def pair(mover: FakeMover) -> tuple[FakeMemory, FakeWriter]:
    source = mover.open_memory(100)
    source.buffer[:] = bytes(range(100))
    return mover.open_memory(100), mover.open_writer(source)


def test_runs_land_one_by_one() -> None:
    memory, writer = pair(FakeMover())
    writer.post(1, memory.key, [Span(1, 0, 2), Span(3, 2, 1), Span(9, 50, 1)])
    assert bytes(memory.buffer) == bytes(100)
    writer.land(1, num_runs=1)
    assert bytes(memory.buffer[:4]) == bytes([1, 2, 3, 0])
    assert memory.buffer[50] == 0
    assert writer.poll() == []
    writer.land(1)
    assert memory.buffer[50] == 9
    assert writer.poll() == [Completion(1, DONE)]
    assert writer.flying == ()


def test_a_lost_write_can_land_late() -> None:
    memory, writer = pair(FakeMover())
    writer.post(1, memory.key, [Span(1, 0, 1)])
    writer.lose(1)
    assert writer.poll() == [Completion(1, UNKNOWN)]
    assert writer.flying == (1,)
    writer.land(1)
    assert writer.poll() == [Completion(1, DONE)]


def test_only_a_dead_writer_is_proven_finished() -> None:
    memory, writer = pair(FakeMover())
    admission = memory.admit(writer.identity)
    writer.post(1, memory.key, [Span(1, 0, 1)])
    assert not admission.fence()
    writer.kill()
    assert admission.fence()
    assert writer.flying == ()
    with pytest.raises(MoverError):
        memory.admit(writer.identity)


def test_a_fence_that_cuts_off_ends_what_flies() -> None:
    memory, writer = pair(FakeMover(fences_the_living=True))
    admission = memory.admit(writer.identity)
    writer.post(1, memory.key, [Span(1, 0, 1)])
    assert admission.fence()
    writer.land(1)
    assert writer.poll() == [Completion(1, FAILED)]
    assert memory.buffer[0] == 0


def test_a_fence_can_be_held_back() -> None:
    memory, writer = pair(FakeMover(fences_the_living=True))
    admission = memory.admit(writer.identity)
    admission.refuse_fences = True
    assert not admission.fence()
    admission.refuse_fences = False
    assert admission.fence()


def test_a_mover_that_lands_at_once_needs_no_test_to_drive_it() -> None:
    memory, writer = pair(FakeMover(lands_at_once=True))
    writer.post(1, memory.key, [Span(7, 3, 1)])
    assert writer.poll() == [Completion(1, DONE)]
    assert memory.buffer[3] == 7
