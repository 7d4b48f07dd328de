import select
import time
from collections.abc import Iterator

import pytest

from lineclear.transport.movers.delayed import DelayedMover, Delays
from lineclear.transport.movers.fake import FakeMover
from lineclear.transport.movers.mover import Completion, Outcome, Span
from lineclear.transport.movers.shm import ShmMover
from lineclear.transport.movers.threaded_writer import ThreadedWriter

NUM_WRITES = 40


def outcomes(delays: Delays, seed: int = 5) -> list[tuple[int, Outcome]]:
    mover = DelayedMover(ShmMover(), delays, seed)
    source, memory = mover.open_memory(4096), mover.open_memory(4096)
    writer = mover.open_writer(source)
    for ticket in range(NUM_WRITES):
        writer.post(ticket, memory.key, [Span(0, ticket, 1), Span(0, ticket + 100, 1)])
    answers = list(proofs(writer, NUM_WRITES if delays.proves_late else 0))
    time.sleep(0.05)
    writer.close()
    answers += writer.poll()
    memory.close()
    source.close()
    return [(each.ticket, each.outcome) for each in answers]


def proofs(writer: ThreadedWriter, num_proofs: int) -> Iterator[Completion]:
    while num_proofs:
        assert select.select([writer.fileno()], [], [], 10.0)[0]
        for each in writer.poll():
            num_proofs -= each.outcome is not Outcome.UNKNOWN
            yield each


def test_completions_are_held_back_and_overtake_each_other() -> None:
    found = outcomes(Delays(max_completion_seconds=0.03))
    assert sorted(found) == [(ticket, Outcome.DONE) for ticket in range(NUM_WRITES)]
    assert found != sorted(found)


def test_a_share_is_lost_and_proven_late() -> None:
    found = outcomes(Delays(lost_share=0.5, max_completion_seconds=0.01))
    lost = [ticket for ticket, outcome in found if outcome is Outcome.UNKNOWN]
    assert 5 < len(lost) < NUM_WRITES - 5
    for ticket in lost:
        assert [outcome for each, outcome in found if each == ticket] == [Outcome.UNKNOWN, Outcome.DONE]


def test_a_share_is_lost_for_good() -> None:
    found = outcomes(Delays(lost_share=0.5, proves_late=False))
    assert len(found) == NUM_WRITES
    assert {outcome for _, outcome in found} == {Outcome.UNKNOWN, Outcome.DONE}


def test_the_seed_decides_what_is_lost() -> None:
    def lost(seed: int) -> set[int]:
        found = outcomes(Delays(lost_share=0.5, proves_late=False), seed)
        return {ticket for ticket, outcome in found if outcome is Outcome.UNKNOWN}

    assert lost(1) == lost(1)
    assert lost(1) != lost(2)


def test_runs_land_after_pauses() -> None:
    mover = DelayedMover(ShmMover(), Delays(max_run_seconds=0.1), seed=1)
    source, memory = mover.open_memory(100), mover.open_memory(100)
    source.buffer[:] = b"x" * 100
    writer = mover.open_writer(source)
    writer.post(1, memory.key, [Span(0, place, 1) for place in range(0, 100, 10)])
    seen: set[int] = set()
    while not (answers := writer.poll()):
        seen.add(bytes(memory.buffer).count(b"x"))
    assert answers == [Completion(1, Outcome.DONE)]
    assert len(seen) > 5
    writer.close()
    memory.close()
    source.close()


def test_what_the_mover_inside_loses_is_unknown_and_late_failed() -> None:
    inside = FakeMover()
    mover = DelayedMover(inside, Delays())
    source, memory = inside.open_memory(100), inside.open_memory(100)
    fake = inside.open_writer(source)
    inside.open_writer = lambda _: fake  # type: ignore[method-assign]
    writer = mover.open_writer(source)
    writer.post(7, memory.key, [Span(0, 0, 1), Span(50, 70, 1)])
    _land_next(fake, 0)
    _wait_for(lambda: 1 in fake.flying)
    fake.lose(1)
    assert next(proofs_of(writer)) == Completion(7, Outcome.UNKNOWN)
    fake.land(1)
    assert next(proofs_of(writer)) == Completion(7, Outcome.FAILED), "its second run was never posted"
    writer.close()


def proofs_of(writer: ThreadedWriter) -> Iterator[Completion]:
    assert select.select([writer.fileno()], [], [], 10.0)[0]
    yield from writer.poll()


def _land_next(fake: object, ticket: int) -> None:
    _wait_for(lambda: ticket in fake.flying)  # type: ignore[attr-defined]
    fake.land(ticket)  # type: ignore[attr-defined]


def _wait_for(is_so: object) -> None:
    end = time.monotonic() + 10.0
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("span", [Span(0, 100, 1), Span(0, 99, 2), Span(99, 0, 2)])
def test_nothing_lands_of_a_write_with_a_span_outside(span: Span) -> None:
    mover = DelayedMover(ShmMover(), Delays(), seed=1)
    source, memory = mover.open_memory(100), mover.open_memory(100)
    source.buffer[:] = b"x" * 100
    writer = mover.open_writer(source)
    writer.post(1, memory.key, [Span(0, 0, 10), span])
    assert list(proofs(writer, 1)) == [Completion(1, Outcome.FAILED)]
    assert bytes(memory.buffer) == bytes(100)
    writer.close()
    memory.close()
    source.close()
