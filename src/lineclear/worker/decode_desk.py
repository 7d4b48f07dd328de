"""The decode side of handoffs: orders prompts from prefill instances and lets sequences run when they have arrived.

The scheduler says which prompt is worth a handoff and reserves its blocks; here the attempt gets an epoch and a
receiver (`lineclear.protocol.handoff.receiver`), whose effects are carried out: messages on the links to prefill
instances, holds in the scheduler, sequences that go on or wait again.

Invariants:
1. Every attempt has a receiver until that is settled, whatever became of its sequence.
2. Who gets an order, who is lost and who is proven to write no more is said by `instances.py`, and by nothing else.
3. A sequence that has had no token `first_token_seconds` after it was submitted ends with an error, wherever it is.

Order: one thread calls everything, between two engine steps.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from lineclear.base.errors import ConfigError, InvariantError, PeerError
from lineclear.base.ids import SequenceId, WorkerId
from lineclear.config.components import HandoffConfig
from lineclear.kv.pool import Holder, HolderKind
from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff.messages import FailureReason, LineClear, PrefillWork, WritesDone, WritesFailed
from lineclear.protocol.handoff.names import Epoch, Peer, writer_number
from lineclear.protocol.wire import HandoffStatistics, QuarantinedWriter
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.scheduler import Scheduler
from lineclear.schedule.sequence import Sequence
from lineclear.transport.endpoint import parse_endpoint
from lineclear.transport.movers.mover import Memory
from lineclear.transport.peer_links import (
    LifeRefused,
    PeerConnected,
    PeerEvent,
    PeerLinks,
    PeerLost,
    PeerSaid,
)
from lineclear.worker.affinity import prefix_keys
from lineclear.worker.desk import LifeOverError
from lineclear.worker.instances import Instance, Instances, Rank

FIRST_ASK_SECONDS = 0.5
LONGEST_ASK_SECONDS = 10.0
"""Questions are repeated after pauses that double from the first of these to the second, to peers that are heard of.

A link loses nothing while it lasts. So a peer that has said nothing since it was asked has the question before it, and
would only find it there again and again when it comes to read: a storm after every standstill.
"""

MAX_HEAD_TOKENS = 257
"""The largest block and the token after it: what names a family of prefixes, whatever the block size."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempt:
    """One receiver and when it asks again."""

    receiver: rx.Receiver
    instance: Instance
    sequence_id: SequenceId
    asked_at: float
    ask_at: float
    pause: float = FIRST_ASK_SECONDS

    @property
    def num_tokens(self) -> int:
        """Tokens that the attempt orders."""
        return self.receiver.work.end - self.receiver.work.start


@dataclass(slots=True)
class _Waiting:
    """A sequence that has had no token yet."""

    deadline: float
    num_attempts: int = 0
    epoch: Epoch | None = None
    """Of the attempt that is open for it."""


@dataclass(slots=True)
class _Opening:
    """What `open` has promised and `begin` completes."""

    epoch: Epoch
    instance: Instance
    start: int
    prefix_keys: list[bytes]


@dataclass(slots=True)
class _Counts:
    num_ready: int = 0
    num_tokens: int = 0
    num_vouched_blocks: int = 0
    failures: dict[FailureReason, int] = field(default_factory=dict[FailureReason, int])


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a started desk works with."""

    scheduler: Scheduler
    memory: Memory
    links: PeerLinks


class DecodeDesk:
    """The `Prefillers` of a decode worker's scheduler.

    Args:
        worker_id, life: this worker's, part of every epoch.
        config: deadlines and attempts.
    """

    def __init__(
        self,
        worker_id: WorkerId,
        life: int,
        config: HandoffConfig,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker_id = worker_id
        self._life = life
        self._config = config
        self._now = now
        self._parts: _Parts | None = None
        self._next_number = 1
        self._instances = Instances(now, self._on_lost, self._on_fenced)
        self._attempts: dict[Epoch, _Attempt] = {}
        self._waiting: dict[SequenceId, _Waiting] = {}
        self._opening: _Opening | None = None
        self._counts = _Counts()

    def start(self, scheduler: Scheduler, memory: Memory, links: PeerLinks) -> None:
        """Take the scheduler that asks this desk, the memory that its blocks are in, and links to prefill instances."""
        self._parts = _Parts(scheduler, memory, links)
        self._instances.start(memory, links)

    def filenos(self) -> Collection[int]:
        """The links."""
        return (self._started.links.fileno(),)

    @property
    def is_settled(self) -> bool:
        """Whether no attempt is open, but for those whose blocks are in quarantine."""
        return all(attempt.receiver.is_quarantined for attempt in self._attempts.values())

    def seconds_until_due(self) -> float:
        """How long `turn` may be put off while nothing is readable."""
        times = [self._instances.next_due()]
        times += [attempt.ask_at for attempt in self._attempts.values()]
        times += [waiting.deadline for waiting in self._waiting.values()]
        return max(0.0, min(times) - self._now())

    def submit(self, sequence: Sequence) -> None:
        """A sequence is about to be submitted: its time begins."""
        self._waiting[sequence.sequence_id] = _Waiting(self._now() + self._config.first_token_seconds)

    def on_instances(self, endpoints: Collection[str]) -> None:
        """Stay connected to these, and order from no others.

        Raises:
            PeerError: One is no endpoint.
        """
        try:
            wanted = frozenset(parse_endpoint(endpoint) for endpoint in endpoints)
        except ConfigError as error:
            raise PeerError(f"the gateway announced a prefill instance at nowhere: {error}") from None
        self._instances.want(wanted)

    def turn(self) -> None:
        """Take in what peers say and what time brings.

        Raises:
            LifeOverError: A prefill instance has met a later life of this worker.
        """
        for event in self._started.links.poll():
            self._on_link(event)
        self._instances.try_fences()
        now = self._now()
        for sequence_id in [each for each, waiting in self._waiting.items() if waiting.deadline <= now]:
            self._expire(sequence_id)
        for attempt in [each for each in self._attempts.values() if each.ask_at <= now]:
            attempt.pause = min(2 * attempt.pause, LONGEST_ASK_SECONDS)
            attempt.ask_at = now + attempt.pause
            if now - self._instances.seconds_silent(attempt.instance) > attempt.asked_at:
                attempt.asked_at = now
                self._feed(attempt, rx.Tick())
            if self._instances.is_silent(attempt.instance) and self._instances.has_other(attempt.instance):
                self._feed(attempt, rx.Stop(FailureReason.PEER_SILENT))

    def on_updates(self, updates: Iterable[SequenceUpdate]) -> None:
        """Take note of sequences that have their first token, or have ended."""
        for update in updates:
            if update.finish_reason == "broken" and update.sequence.prefill_id:
                self._instances.forget_prompt(
                    update.sequence.prefill_id, tuple(update.sequence.tokens[:MAX_HEAD_TOKENS])
                )
            if not update.token_ids and update.finish_reason is None:
                continue
            waiting = self._waiting.pop(update.sequence.sequence_id, None)
            attempt = None if waiting is None or waiting.epoch is None else self._attempts.get(waiting.epoch)
            if attempt is not None and update.finish_reason is not None:
                self._feed(attempt, rx.Stop(FailureReason.CANCELLED))

    def open(self, sequence: Sequence, start: int) -> Collection[Holder] | None:
        """Choose an instance and the next epoch; see `Prefillers`."""
        terms = sequence.terms
        open_ones = [each for each in self._instances.open_ones() if each.worker_id not in terms.avoid_prefill]
        waiting = self._waiting.get(sequence.sequence_id)
        if not open_ones or waiting is None:
            return None
        keys = prefix_keys(sequence.tokens)

        def cost(each: Instance) -> tuple[bool, bool, int, WorkerId, int]:
            """Who answers first, who is preferred, and then who has least to compute until it is done with this."""
            num_known = each.affinity.num_known(keys) if terms.uses_cache else 0
            num_until = each.num_tokens + sequence.num_tokens - num_known
            is_other = each.worker_id != terms.prefer_prefill
            return self._instances.is_silent(each), is_other, num_until, each.worker_id, each.life

        instance = min(open_ones, key=cost)
        epoch = Epoch(self._worker_id, self._life, self._next_number)
        self._next_number += 1
        self._opening = _Opening(epoch, instance, start, keys)
        return tuple(_writer(epoch, peer) for peer in instance.peers)

    def begin(self, sequence: Sequence) -> None:
        """Send the order; see `Prefillers`."""
        opening = self._opening
        if opening is None:
            raise InvariantError(f"sequence {sequence.sequence_id}: no handoff was opened for it")
        self._opening = None
        work = PrefillWork(
            prompt_token_ids=tuple(sequence.tokens),
            start=opening.start,
            block_ids=tuple(sequence.received_block_ids),
            memory_key=self._started.memory.key,
            sequence_id=sequence.sequence_id,
            use_cache=sequence.terms.uses_cache,
        )
        receiver = rx.Receiver(opening.epoch, work, opening.instance.peers)
        now = self._now()
        attempt = _Attempt(receiver, opening.instance, sequence.sequence_id, now, now + FIRST_ASK_SECONDS)
        self._attempts[opening.epoch] = attempt
        opening.instance.num_tokens += attempt.num_tokens
        opening.instance.affinity.note(opening.prefix_keys)
        waiting = self._waiting[sequence.sequence_id]
        waiting.num_attempts += 1
        waiting.epoch = opening.epoch
        self._feed(attempt, rx.Begin())

    def vouch(self, peer: Peer) -> int:
        """An operator says that a life that is lost can write no more: it counts as fenced from now on, for good.

        Returns: the blocks that waited for that proof; 0 if there are none, or if the instance is connected and will
            answer by itself.
        """
        rank = self._instances.find(peer)
        blocks = sum(len(receiver.work.block_ids) for receiver in self._unproven_of(peer))
        if rank is None or rank.link_id is not None or not blocks:
            return 0
        self._counts.num_vouched_blocks += blocks
        self._instances.vouch(rank)
        return blocks

    def statistics(self) -> HandoffStatistics:
        """What became of the attempts so far, and what is open."""
        quarantined = [each.receiver for each in self._attempts.values() if each.receiver.is_quarantined]
        return HandoffStatistics(
            num_peers=self._instances.num_linked,
            num_open=len(self._attempts),
            num_done=self._counts.num_ready,
            num_failed={reason.value: count for reason, count in self._counts.failures.items()},
            num_tokens=self._counts.num_tokens,
            blocks_quarantined=sum(len(receiver.work.block_ids) for receiver in quarantined),
            blocks_vouched=self._counts.num_vouched_blocks,
            num_links_ended=self._started.links.statistics().by_ending(),
            quarantine=[each for rank in self._instances.ranks() for each in self._quarantined_by(rank)],
        )

    def _quarantined_by(self, rank: Rank) -> list[QuarantinedWriter]:
        peer, lost_at = rank.peer, rank.lost_at
        receivers = self._unproven_of(peer)
        if not receivers or lost_at is None:
            return []
        writer = QuarantinedWriter(
            worker_id=peer.worker_id,
            rank=peer.rank,
            life=peer.life,
            num_handoffs=len(receivers),
            num_blocks=sum(len(receiver.work.block_ids) for receiver in receivers),
            seconds=self._now() - lost_at,
        )
        return [writer]

    def _on_link(self, event: PeerEvent) -> None:
        match event:
            case PeerConnected():
                self._instances.take_in(event)
            case PeerSaid(_, WritesDone() | LineClear() | WritesFailed() as message):
                attempt = self._attempts.get(message.epoch)
                if attempt is not None:
                    self._feed(attempt, rx.Received(message))
            case PeerSaid(_, message):
                logger.error("a prefill instance sent %s, which is for prefill instances", type(message).__name__)
            case PeerLost():
                self._instances.lose(event)
            case LifeRefused(reason):
                raise LifeOverError(reason)
            case _:
                assert_never(event)

    def _on_lost(self, peer: Peer) -> None:
        for attempt in self._attempts_with(peer):
            self._feed(attempt, rx.PeerLost(peer))

    def _on_fenced(self, peer: Peer) -> None:
        for attempt in self._attempts_with(peer):
            self._feed(attempt, rx.Fenced(peer))

    def _attempts_with(self, peer: Peer) -> list[_Attempt]:
        return [attempt for attempt in self._attempts.values() if peer in attempt.receiver.peers]

    def _expire(self, sequence_id: SequenceId) -> None:
        waiting = self._waiting.pop(sequence_id)
        error = f"no first token within {self._config.first_token_seconds:g} s"
        self._started.scheduler.fail(sequence_id, error)
        attempt = None if waiting.epoch is None else self._attempts.get(waiting.epoch)
        if attempt is not None:
            self._feed(attempt, rx.Stop(FailureReason.DEADLINE))

    def _unproven_of(self, peer: Peer) -> list[rx.Receiver]:
        """Those that wait for the proof that a lost peer can write no more."""
        return [each.receiver for each in self._attempts_with(peer) if peer in each.receiver.lost]

    def _feed(self, attempt: _Attempt, event: rx.ReceiverEvent) -> None:
        attempt.receiver, effects = rx.step(attempt.receiver, event)
        for effect in effects:
            self._perform(attempt, effect)

    def _perform(self, attempt: _Attempt, effect: rx.ReceiverEffect) -> None:
        match effect:
            case rx.Send(message):
                self._instances.send(message)
            case rx.ReleaseWriter(epoch, peer):
                self._started.scheduler.end_remote_write(_writer(epoch, peer))
            case rx.Ready():
                self._counts.num_ready += 1
                self._counts.num_tokens += attempt.num_tokens
                self._started.scheduler.arrive(attempt.sequence_id, attempt.instance.worker_id)
            case rx.Failed(_, reason):
                self._on_failed(attempt, reason)
            case rx.Settled(epoch):
                attempt.instance.num_tokens -= attempt.num_tokens
                del self._attempts[epoch]
            case _:
                assert_never(effect)

    def _on_failed(self, attempt: _Attempt, reason: FailureReason) -> None:
        """Let the sequence wait for another attempt, unless it has ended."""
        self._counts.failures[reason] = self._counts.failures.get(reason, 0) + 1
        waiting = self._waiting.get(attempt.sequence_id)
        if waiting is None or waiting.epoch != attempt.receiver.epoch:
            return
        waiting.epoch = None
        logger.info("handoff of sequence %d failed: %s", attempt.sequence_id, reason)
        is_local = waiting.num_attempts >= self._config.max_attempts
        self._started.scheduler.return_to_wait(attempt.sequence_id, is_local=is_local)

    @property
    def _started(self) -> _Parts:
        if self._parts is None:
            raise InvariantError("the desk is not started")
        return self._parts


def _writer(epoch: Epoch, peer: Peer) -> Holder:
    return Holder(HolderKind.WRITER, writer_number(epoch, peer))
