"""The sender: decides for every handoff that one life of one prefill rank may still write for.

    PrefillOrder, newer than `newest` ─▶ OPEN ── all written, none flying, none unknown ──▶ DONE: WritesDone
                                          │ Abort · PrefillFailed · bad or unknown write · DecodeGone
                                          ▼
                                        CLOSED ── none flying, none unknown ──────────────▶ (no record): LineClear
    PrefillOrder, not newer and without a record; Abort without a record ─▶ LineClear

A write, as the record sees it:

    (not begun) ── ChunkComputed: PostWrite ──▶ flying ── WriteEnded ok ──▶ (ended)
                                                   │ WriteEnded bad ──▶ (ended), the record closes
                                                   └ WriteUnknown ────▶ unknown, the record closes
                                                                            └ WriteEnded, late ──▶ (ended)

Invariants:
    1. A write begins only by a PostWrite, which only an OPEN record emits, and it is flying from that moment,
       before the shell has touched the transport (R1).
    2. OPEN is left once and for ever. A CLOSED record has a write that is flying or unknown (R3).
    3. An epoch without a record that is not newer than `newest` will never write again. So a DONE record may be
       forgotten at any time, and the newest epoch of each decode worker is the only tombstone (R4).
    4. The source blocks are held exactly while the record is OPEN or CLOSED: the condition of the answer is the
       condition of the hold (R3).
    5. Nothing is remembered of whoever asks: answers follow from the state whenever a question comes (R11).

Driven by the one thread that owns all handoffs of a rank process, and by the explorer. Effects are performed in the
order in which they are returned.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from lineclear.base.errors import InvariantError
from lineclear.base.ids import WorkerId
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
from lineclear.protocol.handoff.names import Epoch, Peer, end_of_life


@dataclass(frozen=True, slots=True)
class Record:
    """One handoff that may still write: OPEN, or CLOSED and not drained."""

    epoch: Epoch
    work: PrefillWork
    posted: int
    """Tokens [work.start, posted) have had their write posted."""
    num_writes: int = 0
    """Writes posted so far; their ids are 0 to num_writes - 1."""
    flying: frozenset[int] = frozenset()
    """Ids of writes posted and not reported."""
    unknown: frozenset[int] = frozenset()
    """Ids of writes that the transport gave up and proves nothing about."""
    closed_by: FailureReason | None = None
    """None while OPEN."""

    @property
    def is_open(self) -> bool:
        """Whether more writes may be posted."""
        return self.closed_by is None


@dataclass(frozen=True, slots=True)
class Sender:
    """All handoffs of one life of one rank."""

    peer: Peer
    newest: tuple[Epoch, ...] = ()
    """The highest epoch heard of from each decode worker, by order or abort."""
    records: tuple[Record, ...] = ()
    """OPEN and CLOSED ones, by epoch."""
    done: tuple[WritesDone, ...] = ()
    """The answers of those that succeeded, oldest first."""

    def find(self, epoch: Epoch) -> Record | None:
        """Return the OPEN or CLOSED record of an epoch."""
        return next((record for record in self.records if record.epoch == epoch), None)

    def find_done(self, epoch: Epoch) -> WritesDone | None:
        """Return the answer of an epoch that succeeded, unless it is forgotten; those that are asked for are recent."""
        return next((answer for answer in reversed(self.done) if answer.epoch == epoch), None)

    def is_newer(self, epoch: Epoch) -> bool:
        """Whether an epoch is newer than all that was heard of from its decode worker."""
        return all(newest < epoch for newest in self.newest if newest.worker_id == epoch.worker_id)

    @property
    def is_stuck(self) -> bool:
        """Whether some write is unknown. If none of its late answers comes, only a new life helps (R9)."""
        return any(record.unknown for record in self.records)

    @property
    def awaits_last_writes(self) -> bool:
        """Whether some answer lacks nothing but the end of writes that are flying."""
        return any(
            record.flying and (not record.is_open or record.posted >= record.work.end) for record in self.records
        )


@dataclass(frozen=True, slots=True)
class Received:
    """A message came, from the decode worker that its epoch names."""

    message: ToRank


@dataclass(frozen=True, slots=True)
class ChunkComputed:
    """The KV of tokens [0, end) is in the source blocks and visible to the transport.

    Also for a prefix that the rank's own tree had.
    """

    epoch: Epoch
    end: int


@dataclass(frozen=True, slots=True)
class WriteEnded:
    """The transport proves that a write can neither land nor read its source any more (R2).

    Owed exactly once for each PostWrite, also for one never posted and for those of a mover that died; for one that
    was reported as unknown, it is the late answer.
    """

    epoch: Epoch
    write_id: int
    ok: bool


@dataclass(frozen=True, slots=True)
class WriteUnknown:
    """The transport gave up on a write and proves nothing (R2)."""

    epoch: Epoch
    write_id: int


@dataclass(frozen=True, slots=True)
class PrefillFailed:
    """The rank cannot compute it."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class DecodeGone:
    """This life of a decode worker, and every earlier one, is over (R12)."""

    worker_id: WorkerId
    life: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Memory is short: keep the newest `keep` DONE records."""

    keep: int


SenderEvent = Received | ChunkComputed | WriteEnded | WriteUnknown | PrefillFailed | DecodeGone | Trim


@dataclass(frozen=True, slots=True)
class Send:
    """Send to the decode worker that the epoch names; to be lost if there is no link to that life of it."""

    message: ToDecode


@dataclass(frozen=True, slots=True)
class BeginPrefill:
    """Compute this. Every source block gets this epoch's reader hold when it is allocated or hit."""

    epoch: Epoch
    work: PrefillWork


@dataclass(frozen=True, slots=True)
class StopPrefill:
    """Compute no further chunk, all ranks of the instance at the same one. Hygiene (R12)."""

    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PostWrite:
    """Write the KV of tokens [start, end) into the blocks of the work. Counted already: a report is owed (R1)."""

    epoch: Epoch
    write_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReleaseSource:
    """End this epoch's reader hold on its source blocks: no write can read them any more."""

    epoch: Epoch


SenderEffect = Send | BeginPrefill | StopPrefill | PostWrite | ReleaseSource
Step = tuple[Sender, tuple[SenderEffect, ...]]


def step(state: Sender, event: SenderEvent) -> Step:
    """Return the state after an event, and what to do about it.

    Raises: InvariantError if the shell reports a write that is not owed, or a chunk beyond the prompt.
    """
    match event:
        case Received(message):
            return _receive(state, message)
        case ChunkComputed():
            return _compute(state, event)
        case WriteEnded() | WriteUnknown():
            return _report(state, event)
        case PrefillFailed(epoch):
            record = state.find(epoch)
            return (state, ()) if record is None else _fail(state, record, FailureReason.PREFILL_FAILED)
        case DecodeGone(worker_id, life):
            return _forget_decode(state, Epoch(worker_id, life, 0))
        case Trim(keep):
            return replace(state, done=state.done[max(0, len(state.done) - keep) :]), ()
        case _:
            assert_never(event)


def _receive(state: Sender, message: ToRank) -> Step:
    if message.peer != state.peer:
        return state, ()
    match message:
        case PrefillOrder():
            return _order(state, message)
        case Abort():
            return _abort(state, message)
        case _:
            assert_never(message)


def _order(state: Sender, order: PrefillOrder) -> Step:
    if not state.is_newer(order.epoch):
        answer = _answer(state, order.epoch)
        return state, () if answer is None else (Send(answer),)
    record = Record(order.epoch, order.work, posted=order.work.start)
    return _with(_hear(state, order.epoch), record), (BeginPrefill(order.epoch, order.work),)


def _answer(state: Sender, epoch: Epoch) -> ToDecode | None:
    """How an epoch stands that was heard of; None if it is OPEN."""
    record = state.find(epoch)
    if record is not None:
        return None if record.closed_by is None else WritesFailed(epoch, state.peer, record.closed_by)
    done = state.find_done(epoch)
    if done is not None:
        return done
    return LineClear(epoch, state.peer)


def _abort(state: Sender, abort: Abort) -> Step:
    record = state.find(abort.epoch)
    if record is not None:
        return _close(state, record, FailureReason.ABORTED)
    state = _hear(state, abort.epoch)
    state = replace(state, done=tuple(answer for answer in state.done if answer.epoch != abort.epoch))
    return state, (Send(LineClear(abort.epoch, state.peer)),)


def _compute(state: Sender, event: ChunkComputed) -> Step:
    record = state.find(event.epoch)
    if record is None or not record.is_open:
        return state, ()
    if event.end > record.work.end:
        raise InvariantError(f"{event.epoch}: a chunk ends at {event.end}, the work at {record.work.end}")
    if event.end <= record.posted:
        return state, ()
    write_id = record.num_writes
    flying = record.flying | {write_id}
    after = replace(record, posted=event.end, num_writes=write_id + 1, flying=flying)
    return _with(state, after), (PostWrite(event.epoch, write_id, record.posted, event.end),)


def _report(state: Sender, event: WriteEnded | WriteUnknown) -> Step:
    record = _owing(state, event)
    write = {event.write_id}
    match event:
        case WriteUnknown():
            record = replace(record, flying=record.flying - write, unknown=record.unknown | write)
            return _fail(state, record, FailureReason.WRITE_UNKNOWN)
        case WriteEnded(ok=ok):
            record = replace(record, flying=record.flying - write, unknown=record.unknown - write)
            return _settle(state, record) if ok else _fail(state, record, FailureReason.WRITE_FAILED)
        case _:
            assert_never(event)


def _fail(state: Sender, record: Record, reason: FailureReason) -> Step:
    """Close a record by itself, which is news for the decode worker."""
    if not record.is_open:
        return _settle(state, record)
    state, effects = _close(state, record, reason)
    return state, (Send(WritesFailed(record.epoch, state.peer, reason)), *effects)


def _close(state: Sender, record: Record, reason: FailureReason) -> Step:
    if not record.is_open:
        return _settle(state, record)
    state, effects = _settle(state, replace(record, closed_by=reason))
    return state, (StopPrefill(record.epoch), *effects)


def _settle(state: Sender, record: Record) -> Step:
    """Answer and let go of the source as soon as nothing of a record can land or read any more."""
    if record.flying or record.unknown or (record.is_open and record.posted < record.work.end):
        return _with(state, record), ()
    state = _without(state, record)
    if record.is_open:
        done = WritesDone(record.epoch, state.peer)
        return replace(state, done=(*state.done, done)), (Send(done), ReleaseSource(record.epoch))
    return state, (Send(LineClear(record.epoch, state.peer)), ReleaseSource(record.epoch))


def _forget_decode(state: Sender, last: Epoch) -> Step:
    bound = end_of_life(last)
    over = tuple(record for record in state.records if _is_before(record.epoch, bound))
    done = tuple(answer for answer in state.done if not _is_before(answer.epoch, bound))
    state = replace(_hear(state, bound), done=done)
    effects: tuple[SenderEffect, ...] = ()
    for record in over:
        state, more = _close(state, record, FailureReason.DECODE_GONE)
        effects += more
    return state, effects


def _is_before(epoch: Epoch, bound: Epoch) -> bool:
    return epoch.worker_id == bound.worker_id and epoch < bound


def _hear(state: Sender, epoch: Epoch) -> Sender:
    if not state.is_newer(epoch):
        return state
    others = (newest for newest in state.newest if newest.worker_id != epoch.worker_id)
    return replace(state, newest=tuple(sorted((*others, epoch))))


def _owing(state: Sender, event: WriteEnded | WriteUnknown) -> Record:
    """The record that waits for this report. An unknown write owes its late answer."""
    record = state.find(event.epoch)
    if record is not None and event.write_id in record.flying:
        return record
    if record is not None and event.write_id in record.unknown and isinstance(event, WriteEnded):
        return record
    raise InvariantError(f"a report is not owed: {event}")


def _with(state: Sender, record: Record) -> Sender:
    others = (other for other in state.records if other.epoch != record.epoch)
    return replace(state, records=tuple(sorted((*others, record), key=_by_epoch)))


def _without(state: Sender, record: Record) -> Sender:
    return replace(state, records=tuple(other for other in state.records if other.epoch != record.epoch))


def _by_epoch(record: Record) -> Epoch:
    return record.epoch
