"""The receiver with one guard taken out: wrappers that rewrite an event before the production step, or its outcome.

A docstring says what the mutant does wrong. The machine itself has no switches.
"""

from dataclasses import replace

from lineclear.protocol.handoff.messages import LineClear, ToDecode, WritesDone, WritesFailed
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.protocol.handoff.receiver import (
    Failed,
    Fenced,
    PeerLost,
    Ready,
    Received,
    Receiver,
    ReceiverEvent,
    ReceiverPhase,
    ReleaseWriter,
    Settled,
    Step,
    Tick,
    step,
)


def believes_another_life(state: Receiver, event: ReceiverEvent) -> Step:
    """Take the answer of any life of a rank for that of the life that got the order."""
    if isinstance(event, Received):
        peer = next(peer for peer in state.peers if peer.rank == event.message.peer.rank)
        event = Received(_readdressed(event.message, event.message.epoch, peer))
    return step(state, event)


def believes_another_attempt(state: Receiver, event: ReceiverEvent) -> Step:
    """Take an answer about an earlier attempt for one about this."""
    if isinstance(event, Received):
        event = Received(_readdressed(event.message, state.epoch, event.message.peer))
    return step(state, event)


def counts_answers(state: Receiver, event: ReceiverEvent) -> Step:
    """Count proofs while closing, instead of telling who gave them: one that comes twice counts twice."""
    if (
        isinstance(event, Received)
        and event.message.epoch == state.epoch
        and event.message.peer in state.proven
        and state.phase is ReceiverPhase.CLOSING
    ):
        event = Received(_readdressed(event.message, state.epoch, state.unproven[0]))
    return step(state, event)


def is_ready_at_first_done(state: Receiver, event: ReceiverEvent) -> Step:
    """Decode as soon as one rank has written its part."""
    after, effects = step(state, event)
    if after.phase is not ReceiverPhase.WAITING or not after.done:
        return after, effects
    releases = (ReleaseWriter(state.epoch, peer) for peer in after.unproven)
    ready = replace(after, phase=ReceiverPhase.READY)
    return ready, (Ready(state.epoch), *effects, *releases, Settled(state.epoch))


def releases_before_ready(state: Receiver, event: ReceiverEvent) -> Step:
    """End the last writer's hold before the sequence has its own."""
    after, effects = step(state, event)
    return after, tuple(sorted(effects, key=lambda effect: isinstance(effect, Ready)))


def takes_failure_for_proof(state: Receiver, event: ReceiverEvent) -> Step:
    """Take a rank's word that it failed for its word that the line is clear."""
    if isinstance(event, Received) and isinstance(event.message, WritesFailed):
        event = Received(LineClear(event.message.epoch, event.message.peer))
    return step(state, event)


def takes_loss_for_proof(state: Receiver, event: ReceiverEvent) -> Step:
    """Take a lost connection for the end of all writes."""
    return step(state, Fenced(event.peer) if isinstance(event, PeerLost) else event)


def ignores_news(state: Receiver, event: ReceiverEvent) -> Step:
    """Wait on after a rank said that it failed."""
    if isinstance(event, Received) and isinstance(event.message, WritesFailed):
        return state, ()
    return step(state, event)


def keeps_holds_of_fenced(state: Receiver, event: ReceiverEvent) -> Step:
    """Count a fence as proof without ending the hold."""
    after, effects = step(state, event)
    if isinstance(event, Fenced):
        effects = tuple(effect for effect in effects if not isinstance(effect, ReleaseWriter))
    return after, effects


def fails_twice(state: Receiver, event: ReceiverEvent) -> Step:
    """Give an outcome again when the news of a failure comes again."""
    after, effects = step(state, event)
    if (
        isinstance(event, Received)
        and isinstance(event.message, WritesFailed)
        and event.message.epoch == state.epoch
        and state.phase is ReceiverPhase.CLOSING
    ):
        effects = (*effects, Failed(state.epoch, event.message.reason))
    return after, effects


def orders_once(state: Receiver, event: ReceiverEvent) -> Step:
    """Do not repeat an order."""
    return (state, ()) if isinstance(event, Tick) and state.phase is ReceiverPhase.WAITING else step(state, event)


def aborts_once(state: Receiver, event: ReceiverEvent) -> Step:
    """Do not repeat an abort."""
    return (state, ()) if isinstance(event, Tick) and state.phase is ReceiverPhase.CLOSING else step(state, event)


def _readdressed(message: ToDecode, epoch: Epoch, peer: Peer) -> ToDecode:
    match message:
        case WritesDone():
            return WritesDone(epoch, peer)
        case LineClear():
            return LineClear(epoch, peer)
        case WritesFailed():
            return WritesFailed(epoch, peer, message.reason)
