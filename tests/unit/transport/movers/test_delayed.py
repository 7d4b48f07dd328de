import os
import time
from collections.abc import Sequence

import pytest

from lineclear.engine.bell import wait_readable
from lineclear.transport.movers.delayed import DelayedMover, Delays
from lineclear.transport.movers.fake import FakeMover
from lineclear.transport.movers.mover import Completion, Memory, Outcome, Span, Writer

DONE, FAILED, UNKNOWN = Outcome.DONE, Outcome.FAILED, Outcome.UNKNOWN
SIZE = 4096


def answers_of(writer: Writer, num_answers: int) -> list[Completion]:
    """Wait for that many, and close; return them and what was owed beyond."""
    answers: list[Completion] = []
    end = time.monotonic() + 10.0
    while len(answers) < num_answers:
        assert time.monotonic() < end, answers
        wait_readable([writer.fileno()], 0.1)
        answers += writer.poll()
    writer.close()
    return answers + writer.poll()


def written(delays: Delays, num_posts: int, num_answers: int, seed: int = 0) -> list[Completion]:
    mover = DelayedMover(FakeMover(lands_at_once=True), delays, seed)
    memory = mover.open_memory(SIZE)
    writer = mover.open_writer(memory)
    for ticket in range(num_posts):
        writer.post(ticket, memory.key, [Span(0, 100, 10), Span(50, 200, 10)])
    return answers_of(writer, num_answers)


def test_without_delays_all_is_done() -> None:
    assert written(Delays(), 5, 5) == [Completion(ticket, DONE) for ticket in range(5)]


def test_what_is_lost_is_unknown_first_and_proven_later() -> None:
    answers = written(Delays(max_completion_seconds=0.005, lost_share=1.0), 20, 40)
    for ticket in range(20):
        assert [each.outcome for each in answers if each.ticket == ticket] == [UNKNOWN, DONE]


def test_what_is_lost_for_good_is_never_proven() -> None:
    answers = written(Delays(lost_share=1.0, proves_late=False), 5, 5)
    assert answers == [Completion(ticket, UNKNOWN) for ticket in range(5)]


def test_the_seed_says_what_is_lost() -> None:
    delays = Delays(lost_share=0.5, proves_late=False)
    once, again, other = (written(delays, 30, 30, seed) for seed in (4, 4, 5))
    assert once == again
    assert once != other
    assert {each.outcome for each in once} == {DONE, UNKNOWN}


def test_a_close_answers_what_waits() -> None:
    mover = DelayedMover(FakeMover(lands_at_once=True), Delays(max_run_seconds=30.0, max_completion_seconds=30.0))
    memory = mover.open_memory(SIZE)
    writer = mover.open_writer(memory)
    for ticket in range(3):
        writer.post(ticket, memory.key, [Span(0, 100, 10)])
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 5.0
    assert sorted(each.ticket for each in writer.poll()) == [0, 1, 2]


class UnsureWriter:
    """Answers each post UNKNOWN and FAILED at once: what `poll` of a real writer may return together."""

    identity = b"unsure"

    def __init__(self) -> None:
        self._completions: list[Completion] = []
        self._descriptor = os.eventfd(1)

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:  # noqa: ARG002
        self._completions += [Completion(ticket, UNKNOWN), Completion(ticket, FAILED)]

    def poll(self) -> list[Completion]:
        completions, self._completions = self._completions, []
        return completions

    def fileno(self) -> int:
        return self._descriptor

    def forget(self, memory_key: bytes) -> None:
        pass

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class UnsureMover(FakeMover):
    def open_writer(self, memory: Memory) -> UnsureWriter:  # type: ignore[override]  # noqa: ARG002
        return UnsureWriter()


@pytest.mark.parametrize("seed", range(5))
def test_proofs_from_inside_do_not_overtake_what_they_prove(seed: int) -> None:
    mover = DelayedMover(UnsureMover(), Delays(max_completion_seconds=0.01), seed)
    memory = mover.open_memory(SIZE)
    writer = mover.open_writer(memory)
    for ticket in range(5):
        writer.post(ticket, memory.key, [Span(0, 0, 10)])
    answers = answers_of(writer, 10)
    for ticket in range(5):
        assert [each.outcome for each in answers if each.ticket == ticket] == [UNKNOWN, FAILED]


def test_runs_land_after_pauses_and_others_see_them_come() -> None:
    mover = DelayedMover(FakeMover(lands_at_once=True), Delays(max_run_seconds=0.1), seed=1)
    source, memory = mover.open_memory(SIZE), mover.open_memory(SIZE)
    source.buffer[:] = b"x" * SIZE
    writer = mover.open_writer(source)
    writer.post(1, memory.key, [Span(0, place, 1) for place in range(0, 100, 10)])
    seen: set[int] = set()
    while not (answers := writer.poll()):
        seen.add(bytes(memory.buffer).count(b"x"))
    assert answers == [Completion(1, DONE)]
    assert len(seen) > 5
    writer.close()


@pytest.mark.parametrize("span", [Span(0, SIZE, 1), Span(0, SIZE - 1, 2), Span(SIZE - 1, 0, 2)])
def test_nothing_lands_of_a_write_with_a_span_outside(span: Span) -> None:
    mover = DelayedMover(FakeMover(lands_at_once=True), Delays())
    source, memory = mover.open_memory(SIZE), mover.open_memory(SIZE)
    source.buffer[:] = b"x" * SIZE
    writer = mover.open_writer(source)
    writer.post(1, memory.key, [Span(0, 0, 10), span])
    assert answers_of(writer, 1) == [Completion(1, FAILED)]
    assert bytes(memory.buffer) == bytes(SIZE)
