import pytest

from lineclear.transport.movers.fake import FakeMemory, FakeMover, FakeWriter
from lineclear.transport.movers.mover import Completion, MoverError, Outcome, Span

SPANS = [Span(0, 10, 4), Span(4, 20, 4), Span(8, 30, 4)]


def pair(mover: FakeMover) -> tuple[FakeWriter, FakeMemory]:
    source, destination = mover.open_memory(64), mover.open_memory(64)
    source.buffer[:12] = b"abcdefghijkl"
    return mover.open_writer(source), destination


def test_a_write_lands_run_by_run() -> None:
    writer, memory = pair(FakeMover())
    writer.post(1, memory.key, SPANS)
    assert bytes(memory.buffer) == bytes(64)
    writer.land(1, num_runs=1)
    assert bytes(memory.buffer[10:24]) == b"abcd" + bytes(10)
    assert writer.poll() == []
    writer.land(1)
    assert bytes(memory.buffer[20:34]) == b"efgh" + bytes(6) + b"ijkl"
    assert writer.poll() == [Completion(1, Outcome.DONE)]
    writer.close()


def test_what_is_lost_can_still_land() -> None:
    writer, memory = pair(FakeMover())
    writer.post(1, memory.key, SPANS)
    writer.lose(1)
    assert writer.flying == (1,)
    writer.land(1)
    assert writer.poll() == [Completion(1, Outcome.UNKNOWN), Completion(1, Outcome.DONE)]
    writer.close()


def test_the_dead_write_and_report_nothing() -> None:
    writer, memory = pair(FakeMover())
    admission = memory.admit(writer.identity)
    writer.post(1, memory.key, SPANS)
    assert not admission.fence()
    writer.kill()
    assert (writer.flying, writer.poll()) == ((), [])
    assert admission.fence()
    with pytest.raises(MoverError, match="no living writer"):
        memory.admit(writer.identity)
    writer.close()


def test_a_fence_that_is_refused_waits_for_the_test() -> None:
    writer, memory = pair(FakeMover(fences_the_living=True))
    admission = memory.admit(writer.identity)
    admission.refuse_fences = True
    assert not admission.fence()
    writer.post(1, memory.key, SPANS)
    admission.refuse_fences = False
    assert admission.fence()
    writer.land(1)
    assert writer.poll() == [Completion(1, Outcome.FAILED)]
    assert bytes(memory.buffer) == bytes(64)
    writer.close()


def test_only_a_dead_writer_is_proven_finished() -> None:
    writer, memory = pair(FakeMover())
    admission = memory.admit(writer.identity)
    writer.post(1, memory.key, SPANS)
    assert not admission.fence()
    writer.kill()
    assert admission.fence()
    with pytest.raises(MoverError):
        memory.admit(writer.identity)


def test_a_fence_that_cuts_off_ends_what_flies() -> None:
    writer, memory = pair(FakeMover(fences_the_living=True))
    admission = memory.admit(writer.identity)
    writer.post(1, memory.key, SPANS)
    assert admission.fence()
    writer.land(1)
    assert writer.poll() == [Completion(1, Outcome.FAILED)]
    assert bytes(memory.buffer) == bytes(64)
    writer.close()


def test_a_mover_that_lands_at_once_needs_nobody_to_drive_it() -> None:
    writer, memory = pair(FakeMover(lands_at_once=True))
    writer.post(1, memory.key, SPANS)
    assert writer.poll() == [Completion(1, Outcome.DONE)]
    assert bytes(memory.buffer[10:14]) == b"abcd"
    writer.close()
