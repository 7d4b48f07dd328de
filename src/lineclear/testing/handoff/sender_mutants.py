"""The sender with one guard taken out: wrappers that rewrite an event before the production step, or what comes of it.

A docstring says what the mutant does wrong. The machine itself has no switches.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from lineclear.protocol.handoff.messages import Abort, LineClear, PrefillOrder, ToDecode, WritesDone
from lineclear.protocol.handoff.names import Epoch
from lineclear.protocol.handoff.sender import (
    ChunkComputed,
    PostWrite,
    PrefillFailed,
    Received,
    Record,
    ReleaseSource,
    Send,
    Sender,
    SenderEffect,
    SenderEvent,
    Step,
    WriteEnded,
    WriteUnknown,
    step,
)
from lineclear.testing.handoff.world import Write

_M = TypeVar("_M", PrefillOrder, Abort)


def looks_before_closing(state: Sender, event: SenderEvent) -> Step:
    """Answer an abort by what is outstanding, without closing the record first."""
    abort = _message(event, Abort)
    record = None if abort is None else state.find(abort.epoch)
    if record is not None and record.is_open and not record.flying:
        return state, (Send(LineClear(record.epoch, state.peer)),)
    return _tolerant(state, event)


def counts_when_posted(state: Sender, event: SenderEvent) -> Step:
    """Count a write only once the shell has posted it: with `count_posted`."""
    after, effects = _tolerant(state, event)
    for effect in effects:
        record = after.find(effect.epoch) if isinstance(effect, PostWrite) else None
        if record is not None and isinstance(effect, PostWrite):
            after = _with(after, replace(record, flying=record.flying - {effect.write_id}))
    return after, effects


def count_posted(state: Sender, write: Write) -> Sender:
    """The other half of `counts_when_posted`."""
    record = state.find(write.epoch)
    return state if record is None else _with(state, replace(record, flying=record.flying | {write.write_id}))


def cancels_by_wishing(state: Sender, event: SenderEvent) -> Step:
    """Take a write that was told to stop for one that has ended."""
    after, effects = _tolerant(state, event)
    abort = _message(event, Abort)
    record = None if abort is None else after.find(abort.epoch)
    return (after, effects) if record is None else _drop_writes(after, record, effects)


def takes_unknown_for_ended(state: Sender, event: SenderEvent) -> Step:
    """Take a write that nobody can tell the end of for one that has ended."""
    if isinstance(event, WriteUnknown):
        event = WriteEnded(event.epoch, event.write_id, ok=False)
    return _tolerant(state, event)


def forgives_bad_writes(state: Sender, event: SenderEvent) -> Step:
    """Go on as if a write that ended badly had ended well."""
    return _tolerant(state, replace(event, ok=True) if isinstance(event, WriteEnded) else event)


def is_done_too_soon(state: Sender, event: SenderEvent) -> Step:
    """Say that all is written when nothing is flying, with chunks still to come."""
    after, effects = _tolerant(state, event)
    record = after.find(event.epoch) if isinstance(event, WriteEnded) else None
    if record is None or not record.is_open or record.flying:
        return after, effects
    done = WritesDone(record.epoch, state.peer)
    return _without(after, record), (*effects, Send(done), ReleaseSource(record.epoch))


def frees_source_at_close(state: Sender, event: SenderEvent) -> Step:
    """Let go of the source blocks as soon as the record closes."""
    after, effects = step(state, event)
    closed = (record.epoch for record in after.records if not record.is_open)
    return after, (*effects, *(ReleaseSource(epoch) for epoch in closed))


def frees_source_of_unknown(state: Sender, event: SenderEvent) -> Step:
    """Let go of the source blocks when a write becomes unknown."""
    after, effects = step(state, event)
    return after, (*effects, ReleaseSource(event.epoch)) if isinstance(event, WriteUnknown) else effects


def forgets_early_aborts(state: Sender, event: SenderEvent) -> Step:
    """Remember nothing of an abort that comes before its order."""
    after, effects = step(state, event)
    abort = _message(event, Abort)
    if abort is not None and state.find(abort.epoch) is None:
        after = replace(after, newest=state.newest)
    return after, effects


def forgets_obeyed_orders(state: Sender, event: SenderEvent) -> Step:
    """Remember aborts that come before their order, but not the epochs of orders that were obeyed and are over."""
    after, effects = _tolerant(state, event)
    return (after, effects) if _message(event, PrefillOrder) is None else (replace(after, newest=state.newest), effects)


def obeys_orders_to_another_life(state: Sender, event: SenderEvent) -> Step:
    """Obey an order to an earlier life of the rank."""
    order = _message(event, PrefillOrder)
    return step(state, event if order is None else Received(PrefillOrder(order.epoch, state.peer, order.work)))


def answers_for_another_life(state: Sender, event: SenderEvent) -> Step:
    """Answer an abort to an earlier life of the rank."""
    abort = _message(event, Abort)
    return step(state, event if abort is None else Received(Abort(abort.epoch, state.peer)))


def keeps_one_record(state: Sender, event: SenderEvent) -> Step:
    """Keep state by request instead of by epoch: a new attempt takes the old one's place."""
    after, effects = _tolerant(state, event)
    order = _message(event, PrefillOrder)
    if order is not None and state.find(order.epoch) is None and after.find(order.epoch) is not None:
        after = replace(after, records=tuple(record for record in after.records if record.epoch == order.epoch))
    return after, effects


def answers_once(state: Sender, event: SenderEvent) -> Step:
    """Do not answer an abort of an epoch that is over."""
    after, effects = step(state, event)
    return after, _silenced(effects) if _message(event, Abort) is not None and after == state else effects


def drains_silently(state: Sender, event: SenderEvent) -> Step:
    """Do not announce the end of a closed record's last write."""
    after, effects = step(state, event)
    return after, _silenced(effects) if isinstance(event, WriteEnded) else effects


@dataclass(frozen=True, slots=True)
class OneTargetSender(Sender):
    """A sender that remembers to whom it owes line clear: to the last that asked."""

    target: Epoch | None = None


def answers_one_target(state: Sender, event: SenderEvent) -> Step:
    """Answer a drain to whoever aborted last, and to nobody else."""
    after, effects = step(state, event)
    abort = _message(event, Abort)
    if abort is not None and isinstance(after, OneTargetSender):
        return replace(after, target=abort.epoch), effects
    if isinstance(event, WriteEnded) and isinstance(after, OneTargetSender) and after.target != event.epoch:
        effects = _silenced(effects)
    return after, effects


@dataclass(frozen=True, slots=True)
class ClearingSender(Sender):
    """A sender that clears transfers which it saw fail."""

    cleared: frozenset[Epoch] = frozenset()


def ignores_aborts_of_cleared(state: Sender, event: SenderEvent) -> Step:
    """Clear a transfer that failed with a write in flight: aborts of it are ignored, its drain is silent."""
    abort = _message(event, Abort)
    if abort is not None and _is_cleared(state, abort.epoch) and state.find(abort.epoch) is not None:
        return state, ()
    after, effects = step(state, event)
    if isinstance(event, PrefillFailed) and isinstance(after, ClearingSender) and after.find(event.epoch) is not None:
        return replace(after, cleared=after.cleared | {event.epoch}), effects
    if isinstance(event, WriteEnded) and _is_cleared(after, event.epoch):
        effects = _silenced(effects)
    return after, effects


def skips_poisoned_chunks(state: Sender, event: SenderEvent) -> Step:
    """Skip a chunk of a closed record, drop its counter of outstanding writes with the unknown ones, and answer."""
    record = state.find(event.epoch) if isinstance(event, ChunkComputed) else None
    if record is not None and not record.is_open:
        return _drop_writes(state, record, ())
    return _tolerant(state, event)


def _message(event: SenderEvent, kind: type[_M]) -> _M | None:
    return event.message if isinstance(event, Received) and isinstance(event.message, kind) else None


def _tolerant(state: Sender, event: SenderEvent) -> Step:
    """A mutant may let go of writes that are out; their reports then come unexpected."""
    if isinstance(event, WriteEnded | WriteUnknown):
        record = state.find(event.epoch)
        if record is None or event.write_id not in record.flying | record.unknown:
            return state, ()
    return step(state, event)


def _drop_writes(state: Sender, record: Record, effects: tuple[SenderEffect, ...]) -> Step:
    for write_id in sorted(record.flying | record.unknown):
        state, more = step(state, WriteEnded(record.epoch, write_id, ok=False))
        effects += more
    return state, effects


def _silenced(effects: tuple[SenderEffect, ...]) -> tuple[SenderEffect, ...]:
    return tuple(effect for effect in effects if not (isinstance(effect, Send) and _is_line_clear(effect.message)))


def _is_line_clear(message: ToDecode) -> bool:
    return isinstance(message, LineClear)


def _is_cleared(state: Sender, epoch: Epoch) -> bool:
    return isinstance(state, ClearingSender) and epoch in state.cleared


def _with(state: Sender, record: Record) -> Sender:
    records = tuple(record if other.epoch == record.epoch else other for other in state.records)
    return replace(state, records=records)


def _without(state: Sender, record: Record) -> Sender:
    return replace(state, records=tuple(other for other in state.records if other.epoch != record.epoch))
