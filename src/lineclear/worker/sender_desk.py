"""What every rank of a prefill instance does for handoffs: it writes what is computed, and answers decode workers.

    computed tokens ──▶ ChunkComputed ──▶ PostWrite ──▶ writer.post
    writer.poll ──▶ WriteEnded | WriteUnknown ──▶ … ──▶ WritesDone | LineClear

`protocol.handoff.sender` decides; this carries. What begins an order and who holds its source blocks is the business of
the two kinds of ranks: `PrefillDesk`, which has the scheduler, and `FollowerDesk`.

Invariants:
    1. A posted write has a ticket of its own, kept until its DONE or FAILED; one that could not be posted is reported
       as failed at once. So every PostWrite is answered, exactly once.
    2. The source blocks of a job are held until ReleaseSource, whatever becomes of its order meanwhile.
"""

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import assert_never

from lineclear.base.ids import BlockId, WorkerId
from lineclear.engine.bell import wait_readable
from lineclear.kv.layout import Layout, PartShape, extents
from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.hello import PeerHello
from lineclear.protocol.handoff.messages import (
    Abort,
    FailureReason,
    ForgetPrompt,
    HandoffMessage,
    PrefillOrder,
    PrefillWork,
    ToDecode,
    WritesFailed,
)
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.protocol.wire import HandoffStatistics
from lineclear.transport.movers.mover import Completion, Outcome, Span, Writer
from lineclear.transport.peer_links import (
    LifeRefused,
    PeerConnected,
    PeerEvent,
    PeerLinkId,
    PeerLinks,
    PeerLost,
    PeerSaid,
)
from lineclear.worker.desk import LifeOverError

MAX_DONE_RECORDS = 256
"""Answers kept for those that ask again; a forgotten one is answered as line clear, which costs a retry. Every handoff
looks through them: 4096 would take 0.5 ms of its CPU, where none take 0.06."""

STUCK_SECONDS = 30.0
"""How long a write may stay unknown before this life ends: only its end is a proof then (R9)."""

STANDSTILL_SECONDS = 120.0
"""How long writes may fly while none of them ends, before this life ends: the way to decode is broken, though the links
are not, and nothing else would free the blocks at both ends."""

LAST_WRITES_SHARE = 0.05
LONGEST_LAST_WRITES_SECONDS = 0.05
"""How long an answer's last writes are waited for before the next step: this share of the last step, and never longer.
Without it the answer waits for all of that step, which is hundreds of times what the writes take."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank writes: parts of its own memory, into memories that have all parts."""

    layout: Layout
    """Of its own memory."""
    shape: tuple[PartShape, ...]
    """Of the decode workers' memories."""
    parts: tuple[PartShape, ...]
    """Those that this rank writes: of each part, one rank of the instance."""

    @staticmethod
    def whole(layout: Layout) -> "Share":
        """Of an instance of one rank."""
        return Share(layout, layout.shape, layout.shape)

    def destination(self, num_blocks: int) -> Layout:
        """The layout of a decode worker's memory of so many blocks."""
        return Layout(self.shape, num_blocks, self.layout.block_size)


@dataclass(slots=True)
class _Decode:
    """The newest life of a decode worker."""

    life: int
    link_id: PeerLinkId | None
    layout: Layout
    memory_key: bytes | None = None
    """Of its newest order."""


@dataclass(slots=True)
class Job:
    """An order whose source blocks may still be read."""

    work: PrefillWork
    layout: Layout
    """Of the memory that is written into."""
    destination: list[BlockId]
    """Its blocks of the prompt, from the first on; those that decode has are not written, and stand there as 0."""
    failed_by: FailureReason = FailureReason.ABORTED
    """Why it fails, if it does; what the rank itself finds is heard first."""
    source: list[BlockId] = field(default_factory=list[BlockId])
    """Blocks of the prompt that are computed, from the first on."""


@dataclass(frozen=True, slots=True)
class RankParts:
    """What a rank sends with."""

    peer: Peer
    """This life of this rank."""
    links: PeerLinks
    """From the decode workers."""
    writer: Writer
    """Reads from the rank's KV memory."""
    share: Share
    """What it writes."""
    now: Callable[[], float] = time.monotonic


class SenderDesk(ABC):
    """One rank's sender machine, with its links, its writer and its clock."""

    def __init__(self, parts: RankParts) -> None:
        self._sender = tx.Sender(parts.peer)
        self._links = parts.links
        self._writer = parts.writer
        self._share = parts.share
        self._now = now = parts.now
        self._decodes: dict[WorkerId, _Decode] = {}
        self._jobs: dict[Epoch, Job] = {}
        self._writes: dict[int, tuple[Epoch, int]] = {}
        """Epoch and write id by ticket."""
        self._next_ticket = itertools.count(1)
        self._stuck_since: float | None = None
        self._moved_at = now()
        """When the last write ended, or the first of those that fly was posted."""
        self._turned_at = now()
        self._step_seconds = 0.0
        """Of the last step: from the end of a turn to what came of it."""
        self._num_done = 0
        self._num_tokens = 0
        self._num_failed: dict[str, int] = {}

    def filenos(self) -> Collection[int]:
        """Links and writer."""
        return (self._links.fileno(), self._writer.fileno())

    @property
    def is_settled(self) -> bool:
        """Whether no write is flying and nothing is being computed."""
        return not self._sender.records

    def seconds_until_due(self) -> float:
        """Everything here comes by a descriptor, except for the patience with writes that do not end."""
        ends: list[float] = []
        if self._stuck_since is not None:
            ends.append(self._stuck_since + STUCK_SECONDS)
        if self._writes:
            ends.append(self._moved_at + STANDSTILL_SECONDS)
        return max(0.0, min(ends, default=float("inf")) - self._now())

    def turn(self) -> None:
        """Take in what the writer and the decode workers say.

        Raises:
            LifeOverError: Writes do not end, or a decode worker has fenced this life.
        """
        for completion in self._writer.poll():
            self._on_completion(completion)
        for event in self._links.poll():
            self._on_link(event)
        self._await_last_writes()
        self._turned_at = self._now()
        self._end_hopeless_life()

    def statistics(self) -> HandoffStatistics:
        """What became of the orders so far, and what is open."""
        return HandoffStatistics(
            num_peers=sum(decode.link_id is not None for decode in self._decodes.values()),
            num_open=len(self._sender.records),
            num_done=self._num_done,
            num_failed=dict(self._num_failed),
            num_tokens=self._num_tokens,
            num_links_ended=self._links.statistics().by_ending(),
        )

    def _on_said(self, link_id: PeerLinkId, message: HandoffMessage | ForgetPrompt) -> None:
        match message:
            case PrefillOrder() | Abort():
                if self._is_newest(link_id, message.epoch):
                    if isinstance(message, PrefillOrder):
                        self._decodes[message.epoch.worker_id].memory_key = message.work.memory_key
                    self._feed(tx.Received(message))
            case ForgetPrompt():
                if message.peer == self._sender.peer:
                    self._forget_prompt(message)
            case _:
                logger.error("a decode worker sent %s, which is for decode workers", type(message).__name__)

    def _forget_prompt(self, message: ForgetPrompt) -> None:
        """Give up what a verdict is about: the first rank decides for all of them what is found where."""
        logger.error(
            "rank %d is told to forget %d tokens, which is for the first", message.peer.rank, len(message.token_ids)
        )

    def _end_hopeless_life(self) -> None:
        if self._writes and self._now() - self._moved_at >= STANDSTILL_SECONDS:
            raise LifeOverError(f"no write has ended for {STANDSTILL_SECONDS:g} s; only the end of this life helps")
        if not self._sender.is_stuck:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = self._now()
        elif self._now() - self._stuck_since >= STUCK_SECONDS:
            raise LifeOverError(f"a write has been unknown for {STUCK_SECONDS:g} s; only the end of this life helps")

    def _await_last_writes(self) -> None:
        """Give writes that an answer waits for a moment to end, so that it does not wait for the step that follows."""
        patience = min(LAST_WRITES_SHARE * self._step_seconds, LONGEST_LAST_WRITES_SECONDS)
        deadline = self._now() + patience
        while self._sender.awaits_last_writes and (left := deadline - self._now()) > 0:
            if not wait_readable([self._writer.fileno()], left):
                return
            for completion in self._writer.poll():
                self._on_completion(completion)

    def _on_completion(self, completion: Completion) -> None:
        self._moved_at = self._now()
        epoch, write_id = self._writes[completion.ticket]
        if completion.outcome is Outcome.UNKNOWN:
            logger.error("%s: nobody can tell what became of write %d: %s", epoch, write_id, completion.reason)
            self._feed(tx.WriteUnknown(epoch, write_id))
            return
        if completion.outcome is Outcome.FAILED:
            logger.warning("%s: write %d failed: %s", epoch, write_id, completion.reason)
        del self._writes[completion.ticket]
        self._feed(tx.WriteEnded(epoch, write_id, ok=completion.outcome is Outcome.DONE))

    def _on_link(self, event: PeerEvent) -> None:
        match event:
            case PeerConnected(link_id, hello, _):
                self._on_connected(link_id, hello)
            case PeerSaid(link_id, message):
                self._on_said(link_id, message)
            case PeerLost(link_id, reason):
                for worker_id, decode in self._decodes.items():
                    if decode.link_id == link_id:
                        logger.warning("decode worker %s, life %d, is lost: %s", worker_id, decode.life, reason)
                        decode.link_id = None
            case LifeRefused(reason):
                raise LifeOverError(reason)
            case _:
                assert_never(event)

    def _is_newest(self, link_id: PeerLinkId, epoch: Epoch) -> bool:
        """Whether a message is of the life that said hello on its link, and of the newest one known."""
        decode = self._decodes.get(epoch.worker_id)
        if decode is not None and decode.link_id == link_id and decode.life == epoch.life:
            return True
        logger.error("a message about %s came on a link that is not its own", epoch)
        return False

    def _on_connected(self, link_id: PeerLinkId, hello: PeerHello) -> None:
        worker_id = WorkerId(hello.worker_id)
        known = self._decodes.get(worker_id)
        if known is not None and hello.life < known.life:
            self._links.refuse(link_id, f"life {known.life} of {worker_id} has been here already", ends_life=True)
            return
        logger.info("decode worker %s, life %d, is connected", worker_id, hello.life)
        self._meet(worker_id, hello.life, hello.num_blocks).link_id = link_id

    def _meet(self, worker_id: WorkerId, life: int, num_blocks: int) -> _Decode:
        """Take note of a decode worker's life, which ends every earlier one; order: no later one is known."""
        known = self._decodes.get(worker_id)
        if known is not None and known.life == life:
            return known
        if known is not None:
            self._feed(tx.DecodeGone(worker_id, life - 1))
            if known.memory_key is not None:
                self._writer.forget(known.memory_key)
        self._decodes[worker_id] = _Decode(life, None, self._share.destination(num_blocks))
        return self._decodes[worker_id]

    def _feed(self, event: tx.SenderEvent) -> None:
        self._sender, effects = tx.step(self._sender, event)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: tx.SenderEffect) -> None:
        match effect:
            case tx.Send(message):
                self._send(message)
            case tx.BeginPrefill(epoch, work):
                layout = self._decodes[epoch.worker_id].layout
                destination = [BlockId(0)] * (work.start // layout.block_size)
                destination += [BlockId(each) for each in work.block_ids]
                self._jobs[epoch] = Job(work, layout, destination)
                self._begin(epoch, self._jobs[epoch])
            case tx.StopPrefill(epoch):
                self._stop(epoch)
            case tx.PostWrite():
                self._post(effect)
            case tx.ReleaseSource(epoch):
                self._release(epoch)
            case _:
                assert_never(effect)

    def _send(self, message: ToDecode) -> None:
        if isinstance(message, WritesFailed):
            self._jobs[message.epoch].failed_by = message.reason
        decode = self._decodes.get(message.epoch.worker_id)
        if decode is not None and decode.link_id is not None and decode.life == message.epoch.life:
            self._links.send(decode.link_id, message)

    def _post(self, write: tx.PostWrite) -> None:
        job = self._jobs[write.epoch]
        spans = extents(
            self._share.layout, job.layout, job.source, job.destination, write.start, write.end, self._share.parts
        )
        ticket = next(self._next_ticket)
        if not self._writes:
            self._moved_at = self._now()
        self._writes[ticket] = (write.epoch, write.write_id)
        self._num_tokens += write.end - write.start
        self._writer.post(ticket, job.work.memory_key, [Span(*each) for each in spans])

    def _release(self, epoch: Epoch) -> None:
        job = self._jobs.pop(epoch)
        if self._sender.find_done(epoch) is None:
            self._num_failed[job.failed_by] = self._num_failed.get(job.failed_by, 0) + 1
        else:
            self._num_done += 1
            self._feed(tx.Trim(MAX_DONE_RECORDS))
        self._let_go(epoch)

    @abstractmethod
    def _begin(self, epoch: Epoch, job: Job) -> None:
        """An order is to be computed."""

    @abstractmethod
    def _stop(self, epoch: Epoch) -> None:
        """Nothing more of it needs to be."""

    @abstractmethod
    def _let_go(self, epoch: Epoch) -> None:
        """None of this rank's writes can read the source blocks any more."""
