"""What each mover has to hold, as functions that raise AssertionError where one does not.

They are functions so that the suite can turn them on movers that are wrong on purpose (`test_mover_controls.py`). The
numbers are those of the invariants in `mover.py`.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from lineclear.transport.movers.mover import MoverError, Outcome, Span
from tests.contract.mover_host import RUN_BYTES
from tests.contract.mover_world import Answers, AnyHost, World, wait_until

SMALL: Final = 256 * 1024
FLOODED: Final = 16 * 1024 * 1024
PARTS: Final = 32
PART_BYTES: Final = FLOODED // PARTS
CALM_SECONDS: Final = 0.25
"""How long a memory is looked at that must not change any more: many times as long as any copy here takes."""
IDLE_SECONDS: Final = 2.0
IDLE_CPU_SECONDS: Final = 0.1

Check = Callable[[World], None]


def pair(world: World, source_bytes: int = SMALL, destination_bytes: int = SMALL) -> tuple[AnyHost, AnyHost, bytes]:
    """Return a host whose writer is admitted by another host, that other host, and its key."""
    writer, destination = world.host(), world.host()
    writer.open(source_bytes, 1)
    destination.open(destination_bytes, 2)
    return writer, destination, destination.admit(writer.open_writer())


def copied(source: bytes, destination: bytes, spans: Sequence[Span]) -> bytes:
    """What the destination holds after a write: the plain meaning of spans."""
    expected = bytearray(destination)
    for span in spans:
        expected[span.destination : span.destination + span.num_bytes] = source[
            span.source : span.source + span.num_bytes
        ]
    return bytes(expected)


def check_writes(world: World, writes: dict[int, list[Span]]) -> None:
    """These writes end DONE, and change what they name and no byte else (4)."""
    writer, destination, key = pair(world)
    before = destination.read()
    answers = Answers(writes)
    writer.post_all(key, writes)
    answers.wait(writer)
    assert answers.tickets(Outcome.DONE) == set(writes)
    expected = copied(writer.read(), before, [span for spans in writes.values() for span in spans])
    assert_same(destination.read(), expected)
    answers.finish(writer)


def assert_same(found: bytes, expected: bytes) -> None:
    different = np.flatnonzero(np.frombuffer(found, np.uint8) != np.frombuffer(expected, np.uint8))
    assert not len(different), f"{len(different)} bytes are wrong, the first at {different[0]}"


def random_spans(seed: int, num_spans: int, limit: int = SMALL) -> list[Span]:
    """Spans with destinations that do not overlap, in no order, from sources that may."""
    dice = np.random.default_rng(seed)
    cuts = np.sort(dice.choice(limit, size=2 * num_spans, replace=False)).reshape(-1, 2)
    lengths = cuts[:, 1] - cuts[:, 0]
    sources = dice.integers(0, limit - lengths + 1)
    spans = [Span(*span) for span in np.stack([sources, cuts[:, 0], lengths], axis=1).tolist()]
    return [spans[index] for index in dice.permutation(num_spans)]


def check_random_spans(world: World) -> None:
    for seed in range(4):
        spans = random_spans(seed, 96)
        check_writes(world, {ticket: spans[ticket::6] for ticket in range(6)})
        world.release()


def check_adjacent_spans(world: World) -> None:
    size = 1000
    both = [Span(3 + index * size, 5000 + index * size, size) for index in range(20)]
    only_sources = [Span(index * size, 60_000 + 2 * index * size, size) for index in range(20)]
    only_destinations = [Span(2 * index * size, 120_000 + index * size, size) for index in range(20)]
    ends = [Span(0, SMALL - 1, 1), Span(SMALL - 1, 0, 1)]
    check_writes(world, {1: both, 2: only_sources, 3: only_destinations, 4: ends})
    world.release()
    check_writes(world, {1: [Span(0, 0, SMALL)]})


def check_many_small_spans(world: World) -> None:
    dice = np.random.default_rng(3)
    lengths = dice.integers(1, 17, size=600).tolist()
    spans = [Span(index * 31, index * 64 + index % 7, length) for index, length in enumerate(lengths)]
    check_writes(world, {9: spans})


def check_empty_spans(world: World) -> None:
    check_writes(world, {1: [], 2: [Span(0, 0, 0)], 3: [Span(SMALL, SMALL, 0), Span(7, 7, 0)]})


OUTSIDE: Final = (
    Span(SMALL - 9, 0, 10),
    Span(0, SMALL - 9, 10),
    Span(SMALL + 1, 0, 0),
    Span(0, SMALL + 1, 0),
    Span(-1, 0, 10),
    Span(0, -1, 10),
    Span(0, 0, -1),
    Span(0, 0, SMALL + 1),
    Span(0, 2**62, 10),
    Span(2**63 - 1, 0, 10),
    Span(0, 0, 2**64),
)


def check_spans_outside(world: World) -> None:
    """A span outside either memory fails its whole post, and no byte changes (3)."""
    writer, destination, key = pair(world)
    before = destination.read()
    answers = Answers(range(len(OUTSIDE)))
    writer.post_all(key, {ticket: [Span(0, 0, 100), span] for ticket, span in enumerate(OUTSIDE)})
    answers.wait(writer)
    for ticket, span in enumerate(OUTSIDE):
        assert answers.outcome(ticket) is Outcome.FAILED, span
        assert answers.reason(ticket), f"{span}: no reason"
    assert_same(destination.read(), before)
    answers.finish(writer)


def check_memories_of_two_sizes(world: World) -> None:
    """Sources are measured by the source's size, destinations by the destination's (3)."""
    writer, destination, key = pair(world, 1000, 100_000)
    answers = Answers([1, 2])
    writer.post(1, key, [Span(0, 99_000, 1000)])
    writer.post(2, key, [Span(1, 0, 1000)])
    answers.wait(writer)
    assert (answers.outcome(1), answers.outcome(2)) == (Outcome.DONE, Outcome.FAILED)
    assert_same(destination.read_range(99_000, 100_000), writer.read())
    answers.finish(writer)


def check_unknown_keys(world: World) -> None:
    """A key that is not understood fails the post, and the writer goes on (3)."""
    writer, destination, key = pair(world)
    wrong = [b"", b"?", b"\x00" * 200, key[:-1], key + b"x", key[::-1]]
    answers = Answers(range(len(wrong) + 1))
    for ticket, wrong_key in enumerate(wrong):
        writer.post(ticket, wrong_key, [Span(0, 0, 100)])
    writer.post(len(wrong), key, [Span(0, 0, 100)])
    answers.wait(writer)
    for ticket, wrong_key in enumerate(wrong):
        assert answers.outcome(ticket) is Outcome.FAILED, wrong_key
        assert answers.reason(ticket), f"{wrong_key!r}: no reason"
    assert answers.outcome(len(wrong)) is Outcome.DONE
    assert_same(destination.read_range(0, 100), writer.read_range(0, 100))
    answers.finish(writer)


def check_keys(world: World) -> None:
    """No two memories have the same key, not even one after the other in one process (5)."""
    host = world.host()
    keys: list[bytes] = []
    for _ in range(5):
        host.open(SMALL)
        keys.append(host.key())
        host.close_memory()
    assert len(set(keys)) == len(keys)
    assert all(len(key) < 1000 for key in keys)


def check_old_key(world: World) -> None:
    """With the key of a memory that is closed nobody reaches the next one of its process (5)."""
    writer, destination, key = pair(world)
    destination.close_memory()
    destination.open(SMALL, 3)
    destination.admit(_fresh_identity(world))
    before = destination.read()
    answers = Answers([1])
    writer.post(1, key, [Span(0, 0, SMALL)])
    answers.wait(writer, until=lambda: not answers.unanswered)
    assert_calm(destination, writer, answers)
    assert_same(destination.read(), before)
    answers.finish(writer)


def _fresh_identity(world: World) -> bytes:
    other = world.host()
    other.open(SMALL)
    return other.open_writer()


def check_identities(world: World) -> None:
    """What is no identity is refused, and does no harm."""
    _, destination, _ = pair(world)
    for wrong in (b"", b"?", b"\x00" * 50):
        with contextlib.suppress(MoverError):
            destination.admit(wrong)
            raise AssertionError(f"{wrong!r} was admitted")


def check_answers(world: World) -> None:
    """Each of many posts, good, bad and empty, is answered once (1)."""
    writer, _, key = pair(world)
    good, bad = [Span(0, 0, 5000), Span(9000, 9000, 5000)], [Span(0, SMALL, 1)]
    answers = Answers(range(120))
    writer.post_all(key, {ticket: (good, bad, [])[ticket % 3] for ticket in range(120)})
    answers.wait(writer)
    assert answers.tickets(Outcome.FAILED) == set(range(1, 120, 3))
    answers.finish(writer)


def check_done_is_visible(world: World) -> None:
    """When the writer is told DONE, the last byte is in the other process's memory (2)."""
    size = 2 * FLOODED
    writer, destination, key = pair(world, size, size)
    spans = [Span(start, start, size // 8) for start in range(0, size, size // 8)]
    answers = Answers([1])
    writer.post(1, key, [*spans[1::2], *spans[::2]])
    answers.wait(writer)
    expected = writer.read_range(size - 100, size)
    assert destination.read_range(size - 100, size) == expected, "DONE came before the bytes"
    assert destination.digest() == writer.digest(), "DONE came before the bytes"
    answers.finish(writer)


def check_several_writers(world: World) -> None:
    """Writers do not disturb each other in one memory."""
    destination = world.host()
    destination.open(SMALL, 2)
    expected = destination.read()
    spans = random_spans(5, 90)
    writers = [world.host() for _ in range(3)]
    books = [Answers([7]) for _ in writers]
    for seed, writer in enumerate(writers):
        writer.open(SMALL, 100 + seed)
        expected = copied(writer.read(), expected, spans[seed::3])
    keys = [destination.admit(writer.open_writer()) for writer in writers]
    for seed, writer in enumerate(writers):
        writer.post(7, keys[seed], spans[seed::3])
    for writer, answers in zip(writers, books, strict=True):
        answers.wait(writer)
        assert answers.tickets(Outcome.DONE) == {7}
    assert_same(destination.read(), expected)


def check_several_memories(world: World) -> None:
    """One writer serves several memories, also while it is told to forget one of them."""
    writer, *destinations = (world.host() for _ in range(4))
    writer.open(SMALL, 1)
    identity = writer.open_writer()
    keys: list[bytes] = []
    for seed, destination in enumerate(destinations):
        destination.open(SMALL, 200 + seed)
        keys.append(destination.admit(identity))
    befores = [destination.read() for destination in destinations]
    spans = [random_spans(seed, 40) for seed in range(3)]
    answers = Answers(range(5))
    for ticket in range(3):
        writer.post(ticket, keys[ticket], spans[ticket])
    answers.wait(writer, until=lambda: len(answers.unproven) == 2)
    writer.forget(keys[0])
    for ticket in (3, 4):
        writer.post(ticket, keys[ticket - 2], spans[ticket - 2])
    writer.forget(b"unknown")
    answers.wait(writer)
    assert answers.tickets(Outcome.DONE) == set(range(5))
    for destination, before, written in zip(destinations, befores, spans, strict=True):
        assert_same(destination.read(), copied(writer.read(), before, written))
    answers.finish(writer)


def check_forget(world: World) -> None:
    """A forgotten memory takes no mapping and no descriptor of the writer any more."""
    writer, destination, key = pair(world)
    if world.is_real:  # what is opened with the first write of a process is not the memory's
        _write_one(world.host(), destination)
    mappings, descriptors = _holdings(world, writer)
    answers = Answers([1])
    writer.post(1, key, [Span(0, 0, 100)])
    answers.wait(writer)
    writer.forget(key)
    writer.forget(key)
    wait_until(
        lambda: _holdings(world, writer) <= (mappings, descriptors), "what was forgotten is still held", seconds=5.0
    )
    answers.finish(writer)


def _write_one(writer: AnyHost, destination: AnyHost) -> None:
    writer.open(SMALL, 4)
    key = destination.admit(writer.open_writer())
    answers = Answers([1])
    writer.post(1, key, [Span(0, 0, 100)])
    answers.wait(writer)
    answers.finish(writer)


def _holdings(world: World, host: AnyHost) -> tuple[int, int]:
    return (host.num_mappings(), host.num_descriptors()) if world.is_real else (0, 0)


def check_destination_killed(world: World) -> None:
    """The posts to a memory whose process is killed are all answered, and other memories are still served (1, 2)."""
    writer, destination, key = pair(world, FLOODED + RUN_BYTES, FLOODED)
    other = world.host()
    other.open(SMALL, 3)
    before = destination.digest()
    answers = Answers(range(world.num_flood_posts + 1))
    _flood_until_it_lands(world, writer, destination, key, answers, before)
    destination.kill()
    spans = random_spans(1, 10)
    expected = copied(writer.read_range(0, SMALL), other.read(), spans)
    other_key = other.admit(writer.identity())
    writer.post(world.num_flood_posts, other_key, spans)
    answers.wait(writer, seconds=20.0)
    assert answers.outcome(world.num_flood_posts) is Outcome.DONE
    assert_same(other.read(), expected)
    answers.finish(writer)


def _flood_until_it_lands(
    world: World, writer: AnyHost, destination: AnyHost, key: bytes, answers: Answers, before: bytes
) -> None:
    """Begin a flood, and return in the middle of it."""
    writer.flood(key, world.num_flood_posts)
    answers.wait(writer, until=lambda: destination.digest() != before)
    flood = set(range(world.num_flood_posts))
    assert answers.unproven & flood, "the flood was over before it was looked at"


def check_source_killed(world: World) -> None:
    """Once the fence of a killed writer is true, nothing of it lands any more (6)."""
    writer, destination, key = pair(world, FLOODED + RUN_BYTES, FLOODED)
    identity = writer.identity()
    answers = Answers(range(world.num_flood_posts))
    _flood_until_it_lands(world, writer, destination, key, answers, destination.digest())
    writer.kill()
    wait_until(lambda: destination.fence(identity), "the fence of a killed writer is not true", seconds=5.0)
    assert_calm(destination)
    assert destination.fence(identity), "a fence was true, and is not"
    destination.close_admission(identity)


def check_stopped_writer(world: World) -> None:
    """A frozen writer is not gone: its fence is true only of movers that can cut it off (6)."""
    writer, destination, key = pair(world, FLOODED + RUN_BYTES, FLOODED)
    identity = writer.identity()
    answers = Answers(range(world.num_flood_posts))
    _flood_until_it_lands(world, writer, destination, key, answers, destination.digest())
    writer.stop()
    if world.fences_the_living:
        wait_until(lambda: destination.fence(identity), "the fence of a frozen writer is not true", seconds=5.0)
        before = destination.digest()
        writer.resume()
        assert_calm(destination, writer, answers)
        assert destination.digest() == before, "bytes landed after the fence was true"
        writer.kill()
        return
    end = time.monotonic() + CALM_SECONDS
    while time.monotonic() < end:
        assert not destination.fence(identity), "the fence of a writer that can go on is true"
    before = destination.digest()
    writer.resume()
    answers.wait(writer, until=lambda: destination.digest() != before)
    writer.kill()
    wait_until(lambda: destination.fence(identity), "the fence of a killed writer is not true", seconds=5.0)
    assert_calm(destination)


def check_fence_of_the_living(world: World) -> None:
    """A fence that is true of a running writer lets nothing more land, and no post end DONE that has not landed (2, 6).

    Where it cannot be true of a running writer, it is false and the writer goes on.
    """
    writer, destination, key = pair(world, FLOODED, FLOODED)
    identity = writer.identity()
    answers = Answers(range(PARTS + 1))
    writer.post_all(key, parts())
    answers.wait(writer, until=lambda: bool(answers.tickets(Outcome.DONE)))
    is_fenced = destination.fence(identity)
    after_fence = destination.read() if is_fenced else b""
    writer.post(PARTS, key, [Span(0, 0, FLOODED)])
    answers.wait(writer, until=lambda: not answers.unanswered)
    assert is_fenced == world.fences_the_living
    if not is_fenced:
        answers.wait(writer)
        assert answers.tickets(Outcome.DONE) == set(range(PARTS + 1))
        return
    assert_calm(destination, writer, answers)
    assert_same(destination.read(), after_fence)
    assert answers.outcome(PARTS) is not Outcome.DONE, "a post after the fence is DONE"
    assert_done_parts(answers, writer.read(), after_fence)
    assert destination.fence(identity), "a fence was true, and is not"
    answers.finish(writer)


def parts() -> dict[int, list[Span]]:
    """One write for each part of a memory, in short runs in no order."""
    num_runs = PART_BYTES // RUN_BYTES
    order = np.random.default_rng(11).permutation(num_runs).tolist()
    return {
        part: [Span(*[part * PART_BYTES + run * RUN_BYTES] * 2, RUN_BYTES) for run in order] for part in range(PARTS)
    }


def assert_done_parts(answers: Answers, source: bytes, destination: bytes) -> None:
    for part in answers.tickets(Outcome.DONE) & set(range(PARTS)):
        place = slice(part * PART_BYTES, (part + 1) * PART_BYTES)
        assert destination[place] == source[place], f"part {part} is DONE and not there"


def check_close_in_flight(world: World) -> None:
    """A writer that is closed answers what is open, truthfully: FAILED means that nothing more lands (1, 2)."""
    writer, destination, key = pair(world, FLOODED, FLOODED)
    answers = Answers(range(3 * PARTS))
    writes = {ticket: parts()[ticket % PARTS] for ticket in range(3 * PARTS)}
    started = time.monotonic()
    answers.record(writer.post_and_close(key, writes))
    assert time.monotonic() - started < 5.0
    assert not answers.unanswered
    if not answers.unproven:
        assert_calm(destination)
    assert_done_parts(answers, writer.read(), destination.read())
    assert not writer.poll(), "answered after everything was"


def check_readable(world: World) -> None:
    """The descriptor is readable when, and only when, there is something to poll."""
    writer, _, key = pair(world)
    assert not writer.is_readable(0.1), "readable, and nothing was posted"
    answers = Answers(range(3))
    for ticket, spans in enumerate(([Span(0, 0, 100)], [], [Span(0, SMALL, 1)])):
        writer.post(ticket, key, spans)
        while answers.outcome(ticket) in (None, Outcome.UNKNOWN):
            assert writer.is_readable(5.0), "not readable, and something is owed"
            assert writer.is_readable(0.0), "no longer readable, and nothing was polled"
            answers.record(writer.poll())
        assert not writer.is_readable(0.05), "readable, and everything was polled"
    answers.finish(writer)


def check_idle(world: World) -> None:
    """Neither side takes the CPU while nothing is to be done."""
    writer, destination, key = pair(world)
    answers = Answers([1])
    writer.post(1, key, [Span(0, 0, 100)])
    answers.wait(writer)
    before = [host.cpu_seconds() for host in (writer, destination)]
    time.sleep(IDLE_SECONDS)
    after = [host.cpu_seconds() for host in (writer, destination)]
    taken = [end - start for start, end in zip(before, after, strict=True)]
    assert max(taken) < IDLE_CPU_SECONDS, f"idle for {IDLE_SECONDS} s took {taken} s of CPU (writer, destination)"
    answers.finish(writer)


def check_no_leaks(world: World, num_cycles: int = 50) -> None:
    """Handoffs from beginning to end leave neither descriptors nor threads nor mappings behind."""
    writer, destination = world.host(), world.host()
    before = []
    for cycle in range(num_cycles):
        if cycle == 2:  # the first ones load what stays
            before = [_all_holdings(host) for host in (writer, destination)]
        _hand_over(writer, destination)
    assert [_all_holdings(host) for host in (writer, destination)] == before, "descriptors, threads, mappings"


def _all_holdings(host: AnyHost) -> tuple[int, int, int]:
    return host.num_descriptors(), host.num_threads(), host.num_mappings()


def _hand_over(writer: AnyHost, destination: AnyHost) -> None:
    writer.open(SMALL)
    destination.open(SMALL)
    key = destination.admit(writer.open_writer())
    answers = Answers([1])
    writer.post(1, key, [Span(0, 0, 1000)])
    answers.wait(writer)
    writer.reset()
    destination.reset()


def assert_calm(destination: AnyHost, writer: AnyHost | None = None, answers: Answers | None = None) -> None:
    """The memory does not change, while the writer does what it can."""
    before = destination.digest()
    end = time.monotonic() + CALM_SECONDS
    while time.monotonic() < end:
        if writer is not None and answers is not None:
            answers.record(writer.poll())
        assert destination.digest() == before, "the memory changed after it was proven that it could not"


CHECKS: Final[tuple[Check, ...]] = (
    check_random_spans,
    check_adjacent_spans,
    check_many_small_spans,
    check_empty_spans,
    check_spans_outside,
    check_memories_of_two_sizes,
    check_unknown_keys,
    check_keys,
    check_old_key,
    check_identities,
    check_answers,
    check_done_is_visible,
    check_several_writers,
    check_several_memories,
    check_forget,
    check_destination_killed,
    check_source_killed,
    check_stopped_writer,
    check_fence_of_the_living,
    check_close_in_flight,
    check_readable,
)
PROCESS_CHECKS: Final[tuple[Check, ...]] = (check_idle, check_no_leaks)
"""About what a process holds and takes, which a fake does not show."""
