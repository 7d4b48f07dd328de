"""The receiver: decides for one attempt at a handoff, on the decode side.

    Begin ─▶ WAITING ── WritesDone from every peer ─────────────────────────▶ READY    settled
                │ Stop · WritesFailed · PeerLost · LineClear · Fenced: Failed
                ▼
             CLOSING ── a proof from every peer ────────────────────────────▶ CLEAR    settled

Proofs are WritesDone and LineClear of exactly this epoch from exactly this peer, also late, and Fenced of exactly
this peer. Everything else is news: it may close the attempt, never end a hold.

Invariants:
    1. Each peer has one writer hold on every destination block, from before its first order leaves until its proof.
       Nothing else ends it, no timer above all (R6, R7). Until Ready those are the blocks' only holds.
    2. Exactly one of Ready and Failed is emitted, once, and Settled once, after it (R8).
    3. Whatever is unproven is asked for at every Tick: the order while WAITING, the abort while CLOSING (R11).
    4. Blocks are in quarantine while a lost peer is unproven; they leave it by proof only.

Driven by the decode worker, which keeps the receivers by epoch until Settled, and by the explorer. Effects are
performed in the order in which they are returned.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from lineclear.protocol.handoff.messages import (
    Abort,
    FailureReason,
    LineClear,
    PrefillOrder,
    PrefillWork,
    ToDecode,
    ToRank,
    WritesDone,
    WritesFailed,
)
from lineclear.protocol.handoff.names import Epoch, Peer


class ReceiverPhase(StrEnum):
    """Where an attempt stands."""

    WAITING = "waiting"
    READY = "ready"
    CLOSING = "closing"
    CLEAR = "clear"


@dataclass(frozen=True, slots=True)
class Receiver:
    """One attempt. The destination blocks carry a writer hold of every peer before it gets its first event."""

    epoch: Epoch
    work: PrefillWork
    peers: tuple[Peer, ...]
    """One life of each rank of the prefill instance: all that get an order."""
    phase: ReceiverPhase = ReceiverPhase.WAITING
    done: frozenset[Peer] = frozenset()
    """Those whose proof was success."""
    proven: frozenset[Peer] = frozenset()
    lost: frozenset[Peer] = frozenset()
    """Unproven peers whose life is believed to be over."""

    @property
    def unproven(self) -> tuple[Peer, ...]:
        """The peers whose writes may still land."""
        return tuple(peer for peer in self.peers if peer not in self.proven)

    @property
    def is_quarantined(self) -> bool:
        """Whether the blocks wait for a proof that only a fence or a late answer can bring."""
        return bool(self.lost)


@dataclass(frozen=True, slots=True)
class Begin:
    """The writer holds are taken."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message came, from whoever it names."""

    message: ToDecode


@dataclass(frozen=True, slots=True)
class Stop:
    """Nobody wants the sequence any more: the client left, the deadline passed, the guard objects."""

    reason: FailureReason


@dataclass(frozen=True, slots=True)
class PeerLost:
    """This life of a rank is believed to be over: a closed link, a missed heartbeat, a newer life. News."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Fenced:
    """Nothing issued by this life, posted or yet to be posted, can land, for good. Proof (R9).

    It gets no order any more.
    """

    peer: Peer


@dataclass(frozen=True, slots=True)
class Tick:
    """Time to ask again. The shell spaces the ticks of an attempt further and further."""


ReceiverEvent = Begin | Received | Stop | PeerLost | Fenced | Tick


@dataclass(frozen=True, slots=True)
class Send:
    """Send on the link to the peer that the message names: one FIFO link, so that orders arrive in epoch order (R4)."""

    message: ToRank


@dataclass(frozen=True, slots=True)
class ReleaseWriter:
    """End this peer's writer hold on the destination blocks: it is proven that none of its writes can land."""

    epoch: Epoch
    peer: Peer


@dataclass(frozen=True, slots=True)
class Ready:
    """Let the sequence hold the blocks and decode, once the bytes are visible to the forward pass.

    Order: before the last writer hold ends, so that the blocks are never without a holder.
    """

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Failed:
    """Give the attempt its outcome, now. The blocks keep the holds of all writers that are unproven."""

    epoch: Epoch
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class Settled:
    """Forget the receiver: no writer is left."""

    epoch: Epoch


ReceiverEffect = Send | ReleaseWriter | Ready | Failed | Settled
Step = tuple[Receiver, tuple[ReceiverEffect, ...]]


def step(state: Receiver, event: ReceiverEvent) -> Step:
    """Return the state after an event, and what to do about it."""
    match event:
        case Begin() | Tick():
            return state, _questions(state)
        case Received(message):
            return _receive(state, message)
        case Stop(reason):
            return _close(state, reason)
        case PeerLost(peer):
            return _lose(state, peer)
        case Fenced(peer):
            return _prove_failure(state, peer, FailureReason.PEER_FENCED) if _is_awaited(state, peer) else (state, ())
        case _:
            assert_never(event)


def _receive(state: Receiver, message: ToDecode) -> Step:
    if message.epoch != state.epoch or not _is_awaited(state, message.peer):
        return state, ()
    match message:
        case WritesDone(peer=peer):
            return _prove_success(state, peer)
        case LineClear(peer=peer):
            return _prove_failure(state, peer, FailureReason.REFUSED)
        case WritesFailed(reason=reason):
            return _close(state, reason)
        case _:
            assert_never(message)


def _prove_success(state: Receiver, peer: Peer) -> Step:
    state = _with_proof(state, peer)
    state = replace(state, done=state.done | {peer})
    release = ReleaseWriter(state.epoch, peer)
    if state.phase is ReceiverPhase.CLOSING:
        return _settle_if_clear(state, (release,))
    if len(state.done) < len(state.peers):
        return state, (release,)
    return replace(state, phase=ReceiverPhase.READY), (Ready(state.epoch), release, Settled(state.epoch))


def _prove_failure(state: Receiver, peer: Peer, reason: FailureReason) -> Step:
    state, effects = _close(_with_proof(state, peer), reason)
    return _settle_if_clear(state, (ReleaseWriter(state.epoch, peer), *effects))


def _lose(state: Receiver, peer: Peer) -> Step:
    if not _is_awaited(state, peer):
        return state, ()
    return _close(replace(state, lost=state.lost | {peer}), FailureReason.PEER_LOST)


def _close(state: Receiver, reason: FailureReason) -> Step:
    if state.phase is not ReceiverPhase.WAITING:
        return state, ()
    state = replace(state, phase=ReceiverPhase.CLOSING)
    return state, (Failed(state.epoch, reason), *_questions(state))


def _settle_if_clear(state: Receiver, effects: tuple[ReceiverEffect, ...]) -> Step:
    if state.unproven:
        return state, effects
    return replace(state, phase=ReceiverPhase.CLEAR), (*effects, Settled(state.epoch))


def _questions(state: Receiver) -> tuple[Send, ...]:
    match state.phase:
        case ReceiverPhase.WAITING:
            return tuple(Send(PrefillOrder(state.epoch, peer, state.work)) for peer in state.unproven)
        case ReceiverPhase.CLOSING:
            return tuple(Send(Abort(state.epoch, peer)) for peer in state.unproven)
        case ReceiverPhase.READY | ReceiverPhase.CLEAR:
            return ()
        case _:
            assert_never(state.phase)


def _with_proof(state: Receiver, peer: Peer) -> Receiver:
    return replace(state, proven=state.proven | {peer}, lost=state.lost - {peer})


def _is_awaited(state: Receiver, peer: Peer) -> bool:
    return peer in state.peers and peer not in state.proven
