import pytest

from lineclear.protocol.handoff.messages import (
    Abort,
    FailureReason,
    LineClear,
    PrefillOrder,
    ToDecode,
    WritesDone,
    WritesFailed,
)
from lineclear.protocol.handoff.names import Peer
from lineclear.protocol.handoff.receiver import (
    Begin,
    Failed,
    Fenced,
    PeerLost,
    Ready,
    Received,
    Receiver,
    ReceiverEffect,
    ReceiverEvent,
    ReceiverPhase,
    ReleaseWriter,
    Send,
    Settled,
    Stop,
    Tick,
    step,
)
from tests.unit.protocol.handoff_cases import RANK_0, RANK_1, epoch, work

E = epoch(3)
ORDERS = (Send(PrefillOrder(E, RANK_0, work())), Send(PrefillOrder(E, RANK_1, work())))
ABORTS = (Send(Abort(E, RANK_0)), Send(Abort(E, RANK_1)))
STOP = Stop(FailureReason.DEADLINE)
NEXT_LIFE = Peer(RANK_0.worker_id, RANK_0.rank, RANK_0.life + 1)


def new_receiver() -> Receiver:
    return Receiver(E, work(), (RANK_0, RANK_1))


def run(*events: ReceiverEvent) -> tuple[Receiver, tuple[ReceiverEffect, ...]]:
    """The state after all events, and the effects of the last."""
    state, effects = new_receiver(), ()
    for event in events:
        state, effects = step(state, event)
    return state, effects


def done(peer: Peer) -> Received:
    return Received(WritesDone(E, peer))


def clear(peer: Peer) -> Received:
    return Received(LineClear(E, peer))


def test_every_rank_gets_an_order_and_gets_it_again_while_it_is_unproven() -> None:
    assert run(Begin()) == (new_receiver(), ORDERS)
    assert run(Begin(), Tick()) == (new_receiver(), ORDERS)
    assert run(Begin(), done(RANK_0), Tick())[1] == ORDERS[1:]


def test_ready_when_every_rank_has_written_and_before_the_last_hold_ends() -> None:
    assert run(done(RANK_1))[1] == (ReleaseWriter(E, RANK_1),)
    state, effects = run(done(RANK_1), done(RANK_0))
    assert state.phase is ReceiverPhase.READY
    assert effects == (Ready(E), ReleaseWriter(E, RANK_0), Settled(E))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (STOP, FailureReason.DEADLINE),
        (PeerLost(RANK_0), FailureReason.PEER_LOST),
        (Received(WritesFailed(E, RANK_0, FailureReason.WRITE_UNKNOWN)), FailureReason.WRITE_UNKNOWN),
    ],
)
def test_news_closes_and_gives_one_outcome_and_ends_no_hold(event: ReceiverEvent, reason: FailureReason) -> None:
    state, effects = run(Begin(), event)
    assert state.phase is ReceiverPhase.CLOSING
    assert effects == (Failed(E, reason), *ABORTS)
    assert step(state, event) == (state, ())
    assert step(state, Tick()) == (state, ABORTS)


@pytest.mark.parametrize(
    ("event", "reason"), [(clear(RANK_0), FailureReason.REFUSED), (Fenced(RANK_0), FailureReason.PEER_FENCED)]
)
def test_a_proof_without_success_ends_one_hold_and_closes(event: ReceiverEvent, reason: FailureReason) -> None:
    state, effects = run(Begin(), event)
    assert state.phase is ReceiverPhase.CLOSING
    assert effects == (ReleaseWriter(E, RANK_0), Failed(E, reason), ABORTS[1])


@pytest.mark.parametrize("proof", [clear(RANK_1), done(RANK_1), Fenced(RANK_1)])
def test_clear_when_the_last_proof_comes_whatever_it_is(proof: ReceiverEvent) -> None:
    state, effects = run(STOP, clear(RANK_0), proof)
    assert state.phase is ReceiverPhase.CLEAR
    assert effects == (ReleaseWriter(E, RANK_1), Settled(E))


def test_success_of_a_rank_before_the_end_needs_no_other_proof() -> None:
    state, effects = run(done(RANK_0), STOP)
    assert effects == (Failed(E, FailureReason.DEADLINE), ABORTS[1])
    assert state.unproven == (RANK_1,)


@pytest.mark.parametrize(
    "message",
    [
        LineClear(epoch(2), RANK_0),
        LineClear(epoch(3, life=0), RANK_0),
        LineClear(epoch(3, worker="other"), RANK_0),
        LineClear(E, NEXT_LIFE),
        WritesDone(E, NEXT_LIFE),
        WritesFailed(epoch(2), RANK_0, FailureReason.WRITE_FAILED),
    ],
)
def test_what_names_another_attempt_or_life_is_ignored(message: ToDecode) -> None:
    assert run(Received(message)) == (new_receiver(), ())


@pytest.mark.parametrize("event", [PeerLost(NEXT_LIFE), Fenced(NEXT_LIFE)])
def test_the_end_of_another_life_is_ignored(event: ReceiverEvent) -> None:
    assert run(event) == (new_receiver(), ())


@pytest.mark.parametrize("repeat", [clear(RANK_0), done(RANK_0), Fenced(RANK_0), PeerLost(RANK_0)])
def test_a_proof_counts_once(repeat: ReceiverEvent) -> None:
    before, _ = run(STOP, clear(RANK_0))
    assert step(before, repeat) == (before, ())


def test_blocks_are_in_quarantine_from_the_loss_of_a_writer_to_its_proof() -> None:
    assert not run(STOP)[0].is_quarantined
    lost, _ = run(STOP, PeerLost(RANK_0))
    assert lost.is_quarantined
    assert step(lost, Tick())[0].is_quarantined
    assert not step(lost, Fenced(RANK_0))[0].is_quarantined
    assert not step(lost, clear(RANK_0))[0].is_quarantined


@pytest.mark.parametrize("events", [(done(RANK_0), done(RANK_1)), (STOP, clear(RANK_0), clear(RANK_1))])
def test_a_settled_receiver_asks_nothing_and_does_nothing(events: tuple[ReceiverEvent, ...]) -> None:
    state, _ = run(*events)
    for event in (Tick(), STOP, done(RANK_0), clear(RANK_1), PeerLost(RANK_0), Fenced(RANK_1)):
        assert step(state, event) == (state, ())


def test_states_are_values() -> None:
    assert hash(run(STOP)[0]) == hash(run(Begin(), STOP)[0])
