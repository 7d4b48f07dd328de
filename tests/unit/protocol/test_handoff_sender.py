import pytest

from lineclear.base.errors import InvariantError
from lineclear.base.ids import WorkerId
from lineclear.protocol.handoff.messages import (
    Abort,
    FailureReason,
    LineClear,
    PrefillOrder,
    WritesDone,
    WritesFailed,
)
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.protocol.handoff.sender import (
    BeginPrefill,
    ChunkComputed,
    DecodeGone,
    PostWrite,
    PrefillFailed,
    Received,
    ReleaseSource,
    Send,
    Sender,
    SenderEffect,
    SenderEvent,
    StopPrefill,
    Trim,
    WriteEnded,
    WriteUnknown,
    step,
)
from tests.unit.protocol.handoff_cases import RANK_0, epoch, work

E = epoch(3)
LIVES_BEFORE = Peer(RANK_0.worker_id, RANK_0.rank, RANK_0.life - 1)


def order(of: Epoch = E, peer: Peer = RANK_0, num_tokens: int = 4, start: int = 0) -> Received:
    return Received(PrefillOrder(of, peer, work(num_tokens, start)))


def abort(of: Epoch = E, peer: Peer = RANK_0) -> Received:
    return Received(Abort(of, peer))


def run(*events: SenderEvent) -> tuple[Sender, tuple[SenderEffect, ...]]:
    """The state after all events, and the effects of the last."""
    state, effects = Sender(RANK_0), ()
    for event in events:
        state, effects = step(state, event)
    return state, effects


CLEAR = Send(LineClear(E, RANK_0))
DONE = Send(WritesDone(E, RANK_0))
ALL_WRITTEN = (order(), ChunkComputed(E, 4), WriteEnded(E, 0, ok=True))
IN_FLIGHT = (order(), ChunkComputed(E, 2))


def test_chunks_are_written_as_they_are_computed() -> None:
    assert run(order())[1] == (BeginPrefill(E, work()),)
    assert run(*IN_FLIGHT)[1] == (PostWrite(E, 0, 0, 2),)
    assert run(*IN_FLIGHT, ChunkComputed(E, 4))[1] == (PostWrite(E, 1, 2, 4),)


def test_done_when_all_is_written_in_whatever_order_writes_end() -> None:
    both = (*IN_FLIGHT, ChunkComputed(E, 4))
    assert run(*both, WriteEnded(E, 1, ok=True))[1] == ()
    state, effects = run(*both, WriteEnded(E, 1, ok=True), WriteEnded(E, 0, ok=True))
    assert effects == (DONE, ReleaseSource(E))
    assert state.find(E) is None


def test_not_done_while_tokens_are_left() -> None:
    assert run(*IN_FLIGHT, WriteEnded(E, 0, ok=True))[1] == ()


def test_what_decode_has_is_not_written() -> None:
    started = (order(start=2), ChunkComputed(E, 2))
    assert run(*started)[1] == ()
    assert run(*started, ChunkComputed(E, 4))[1] == (PostWrite(E, 0, 2, 4),)


def test_an_abort_with_nothing_in_flight_is_answered_at_once() -> None:
    assert run(order(), abort())[1] == (StopPrefill(E), CLEAR, ReleaseSource(E))


def test_an_abort_in_flight_is_answered_when_the_write_has_ended_and_not_before() -> None:
    state, effects = run(*IN_FLIGHT, abort())
    assert effects == (StopPrefill(E),)
    assert step(state, abort()) == (state, ())
    assert step(state, ChunkComputed(E, 4)) == (state, ())
    for ok in (True, False):
        assert step(state, WriteEnded(E, 0, ok=ok))[1] == (CLEAR, ReleaseSource(E))


def test_a_bad_write_is_news_and_then_the_proof() -> None:
    both = (*IN_FLIGHT, ChunkComputed(E, 4), WriteEnded(E, 0, ok=False))
    failed = Send(WritesFailed(E, RANK_0, FailureReason.WRITE_FAILED))
    assert run(*both)[1] == (failed, StopPrefill(E))
    assert run(*both, order())[1] == (failed,)
    assert run(*both, WriteEnded(E, 1, ok=True))[1] == (CLEAR, ReleaseSource(E))


def test_a_failed_prefill_is_news_and_then_the_proof() -> None:
    failed = Send(WritesFailed(E, RANK_0, FailureReason.PREFILL_FAILED))
    assert run(order(), PrefillFailed(E))[1] == (failed, StopPrefill(E), CLEAR, ReleaseSource(E))
    assert run(*IN_FLIGHT, PrefillFailed(E))[1] == (failed, StopPrefill(E))
    assert run(PrefillFailed(E)) == (Sender(RANK_0), ())


def test_an_unknown_write_withholds_line_clear_until_its_late_answer() -> None:
    unknown = (*IN_FLIGHT, WriteUnknown(E, 0))
    state, effects = run(*unknown)
    assert effects == (Send(WritesFailed(E, RANK_0, FailureReason.WRITE_UNKNOWN)), StopPrefill(E))
    assert state.is_stuck
    assert step(state, abort()) == (state, ())
    for ok in (True, False):
        late, effects = step(state, WriteEnded(E, 0, ok=ok))
        assert effects == (CLEAR, ReleaseSource(E))
        assert not late.is_stuck


def test_it_says_when_an_answer_lacks_only_the_end_of_writes() -> None:
    assert not run(order())[0].awaits_last_writes
    assert not run(*IN_FLIGHT)[0].awaits_last_writes  # more is computed first
    closed = run(*IN_FLIGHT, abort())[0]
    assert closed.awaits_last_writes
    assert not step(closed, WriteUnknown(E, 0))[0].awaits_last_writes  # that one may never end
    assert not step(closed, WriteEnded(E, 0, ok=True))[0].awaits_last_writes


def test_an_abort_before_its_order_is_answered_and_the_order_refused() -> None:
    assert run(abort())[1] == (CLEAR,)
    assert run(abort(), order())[1] == (CLEAR,)


def test_an_order_that_is_over_is_not_obeyed_again() -> None:
    assert run(order(), abort(), order())[1] == (CLEAR,)
    assert run(*ALL_WRITTEN, order())[1] == (DONE,)
    assert run(*ALL_WRITTEN, Trim(0), order())[1] == (CLEAR,)
    assert run(*ALL_WRITTEN, abort(), order())[1] == (CLEAR,)


def test_an_order_out_of_turn_is_refused_by_worker() -> None:
    assert run(order(epoch(4)), order())[1] == (CLEAR,)
    assert run(order(epoch(4, worker="other")), order())[1] == (BeginPrefill(E, work()),)
    assert run(order(epoch(1, life=2)), order())[1] == (CLEAR,)


def test_a_repeated_order_asks_how_it_stands() -> None:
    state, _ = run(*IN_FLIGHT)
    assert step(state, order()) == (state, ())
    closed, _ = run(*IN_FLIGHT, abort())
    assert step(closed, order()) == (closed, (Send(WritesFailed(E, RANK_0, FailureReason.ABORTED)),))


@pytest.mark.parametrize("event", [order(peer=LIVES_BEFORE), abort(peer=LIVES_BEFORE)])
def test_what_names_another_life_is_ignored(event: SenderEvent) -> None:
    state, _ = run(*IN_FLIGHT)
    assert step(state, event) == (state, ())


def test_decode_gone_closes_all_of_that_life_and_refuses_what_comes_late() -> None:
    newer, other = epoch(1, life=2), epoch(1, worker="other")
    state, effects = run(
        *ALL_WRITTEN,
        order(epoch(4)),
        ChunkComputed(epoch(4), 1),
        order(epoch(5)),
        order(other),
        DecodeGone(E.worker_id, 1),
    )
    assert effects == (
        StopPrefill(epoch(4)),
        StopPrefill(epoch(5)),
        Send(LineClear(epoch(5), RANK_0)),
        ReleaseSource(epoch(5)),
    )
    assert not state.done
    assert step(state, order(epoch(9)))[1] == (Send(LineClear(epoch(9), RANK_0)),)
    assert step(state, order(newer))[1] == (BeginPrefill(newer, work()),)
    kept = state.find(other)
    assert kept is not None
    assert kept.is_open


def test_trim_keeps_the_newest_answers() -> None:
    second = epoch(4)
    both = (*ALL_WRITTEN, order(second), ChunkComputed(second, 4), WriteEnded(second, 0, ok=True))
    for keep, kept in ((5, [E, second]), (1, [second]), (0, [])):
        assert [answer.epoch for answer in run(*both, Trim(keep))[0].done] == kept


@pytest.mark.parametrize(
    "events",
    [
        (WriteEnded(E, 0, ok=True),),
        (order(), WriteEnded(E, 0, ok=True)),
        (*IN_FLIGHT, WriteEnded(E, 0, ok=True), WriteEnded(E, 0, ok=True)),
        (*IN_FLIGHT, WriteEnded(E, 1, ok=True)),
        (*IN_FLIGHT, WriteUnknown(E, 0), WriteUnknown(E, 0)),
        (*ALL_WRITTEN, WriteUnknown(E, 0)),
    ],
)
def test_a_report_that_is_not_owed_is_our_own_mistake(events: tuple[SenderEvent, ...]) -> None:
    run(*events[:-1])
    with pytest.raises(InvariantError, match="not owed"):
        run(*events)


def test_a_chunk_beyond_the_prompt_is_our_own_mistake() -> None:
    with pytest.raises(InvariantError, match="a chunk ends at 5, the work at 4"):
        run(order(), ChunkComputed(E, 5))


def test_states_are_values() -> None:
    assert hash(run(*IN_FLIGHT)[0]) == hash(run(*IN_FLIGHT, ChunkComputed(E, 1))[0])
    assert run(DecodeGone(WorkerId("d"), 0))[0].newest == (epoch(0, life=1),)
