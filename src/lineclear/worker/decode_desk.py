"""The decode side of handoffs: orders prompts from prefill instances and lets sequences run when they have arrived.

The scheduler says which prompt is worth a handoff and reserves its blocks; here the attempt gets an epoch and a
receiver (`lineclear.protocol.handoff.receiver`), whose effects are carried out: messages on the links to prefill
instances, holds in the scheduler, sequences that go on or wait again.

Invariants:
1. Every attempt has a receiver until that is settled, whatever became of its sequence.
2. An order leaves only for a peer that this memory has admitted, and never again for one whose fence was begun.
3. A fence is proven by the mover, or an operator vouches for it; nothing else takes its place.
4. A sequence that has had no token `first_token_seconds` after it was submitted ends with an error, wherever it is.

Order: one thread calls everything, between two engine steps.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from lineclear.base.errors import ConfigError, InvariantError, PeerError
from lineclear.base.ids import SequenceId, WorkerId
from lineclear.config.components import HandoffConfig
from lineclear.kv.pool import Holder, HolderKind
from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff.hello import PeerHello
from lineclear.protocol.handoff.messages import FailureReason, LineClear, PrefillWork, ToRank, WritesDone, WritesFailed
from lineclear.protocol.handoff.names import Epoch, Peer, writer_number
from lineclear.protocol.wire import HandoffStatistics, QuarantinedWriter
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.scheduler import Scheduler
from lineclear.schedule.sequence import Sequence
from lineclear.transport.endpoint import Endpoint, parse_endpoint
from lineclear.transport.movers.mover import Admission, Memory, MoverError
from lineclear.transport.peer_links import (
    LifeRefused,
    PeerConnected,
    PeerEvent,
    PeerLinkId,
    PeerLinks,
    PeerLost,
    PeerSaid,
)
from lineclear.worker.affinity import Affinity, prefix_keys
from lineclear.worker.desk import LifeOverError

FIRST_ASK_SECONDS = 0.5
LONGEST_ASK_SECONDS = 10.0
"""Questions are repeated after pauses that double from the first of these to the second, to peers that are heard of.

A link loses nothing while it lasts. So a peer that has said nothing since it was asked has the question before it, and
would only find it there again and again when it comes to read: a storm after every standstill.
"""

SILENT_SECONDS = 5.0
"""An instance that says nothing for so long, no heartbeat either, is left for another where there is one."""

FENCE_GRACE_SECONDS = 0.5
"""How long a lost link may come back before the peer's life is fenced."""

GREETING_SECONDS = 10.0
"""How long it may where a new connection has been taken: the instance says hello when its step is over."""

FENCE_POLL_SECONDS = 0.05

MAX_FENCED = 1024
"""Lives that are known to be fenced; an older one that comes back is not admitted by the mover."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Instance:
    """One life of a prefill instance."""

    peer: Peer
    admission: Admission
    link_id: PeerLinkId | None
    endpoint: Endpoint | None
    lost_at: float | None = None
    """Since when there is no link."""
    fence_at: float | None = None
    """When to try the fence next; None while there is a link."""
    greets_until: float = 0.0
    """How long a connection that was taken puts the fence off."""
    is_fencing: bool = False
    """It gets no order any more."""
    num_tokens: int = 0
    """Of the attempts that are open with it."""
    affinity: Affinity = field(default_factory=Affinity)


@dataclass(slots=True)
class _Attempt:
    """One receiver and when it asks again."""

    receiver: rx.Receiver
    instance: _Instance
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
    instance: _Instance
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
        self._fenced: deque[Peer] = deque(maxlen=MAX_FENCED)
        """The latest, some of which may live and come back."""
        self._wanted: frozenset[Endpoint] = frozenset()
        """Where the gateway says that prefill instances are."""
        self._next_number = 1
        self._instances: dict[Peer, _Instance] = {}
        self._attempts: dict[Epoch, _Attempt] = {}
        self._waiting: dict[SequenceId, _Waiting] = {}
        self._opening: _Opening | None = None
        self._counts = _Counts()

    def start(self, scheduler: Scheduler, memory: Memory, links: PeerLinks) -> None:
        """Take the scheduler that asks this desk, the memory that its blocks are in, and links to prefill instances."""
        self._parts = _Parts(scheduler, memory, links)

    def filenos(self) -> Collection[int]:
        """The links."""
        return (self._started.links.fileno(),)

    @property
    def is_settled(self) -> bool:
        """Whether no attempt is open, but for those whose blocks are in quarantine."""
        return all(attempt.receiver.is_quarantined for attempt in self._attempts.values())

    def seconds_until_due(self) -> float:
        """How long `turn` may be put off while nothing is readable."""
        times = [attempt.ask_at for attempt in self._attempts.values()]
        times += [waiting.deadline for waiting in self._waiting.values()]
        times += [instance.fence_at for instance in self._instances.values() if instance.fence_at is not None]
        return max(0.0, min(times, default=float("inf")) - self._now())

    def submit(self, sequence: Sequence) -> None:
        """A sequence is about to be submitted: its time begins."""
        self._waiting[sequence.sequence_id] = _Waiting(self._now() + self._config.first_token_seconds)

    def on_instances(self, endpoints: Collection[str]) -> None:
        """Stay connected to these, and order from no others.

        Raises:
            PeerError: One is no endpoint.
        """
        try:
            self._wanted = frozenset(parse_endpoint(endpoint) for endpoint in endpoints)
        except ConfigError as error:
            raise PeerError(f"the gateway announced a prefill instance at nowhere: {error}") from None
        self._started.links.want(self._wanted)

    def turn(self) -> None:
        """Take in what peers say and what time brings.

        Raises:
            LifeOverError: A prefill instance has met a later life of this worker.
        """
        for event in self._started.links.poll():
            self._on_link(event)
        now = self._now()
        for instance in [each for each in self._instances.values() if each.fence_at is not None]:
            self._try_fence(instance, now)
        for sequence_id in [each for each, waiting in self._waiting.items() if waiting.deadline <= now]:
            self._expire(sequence_id)
        for attempt in [each for each in self._attempts.values() if each.ask_at <= now]:
            attempt.pause = min(2 * attempt.pause, LONGEST_ASK_SECONDS)
            attempt.ask_at = now + attempt.pause
            if now - self._seconds_silent(attempt.instance) > attempt.asked_at:
                attempt.asked_at = now
                self._feed(attempt, rx.Tick())
            if self._is_silent(attempt.instance) and self._has_other(attempt.instance):
                self._feed(attempt, rx.Stop(FailureReason.PEER_SILENT))

    def on_updates(self, updates: Iterable[SequenceUpdate]) -> None:
        """Take note of sequences that have their first token, or have ended."""
        for update in updates:
            if not update.token_ids and update.finish_reason is None:
                continue
            waiting = self._waiting.pop(update.sequence.sequence_id, None)
            attempt = None if waiting is None or waiting.epoch is None else self._attempts.get(waiting.epoch)
            if attempt is not None and update.finish_reason is not None:
                self._feed(attempt, rx.Stop(FailureReason.CANCELLED))

    def open(self, sequence: Sequence, start: int) -> Collection[Holder] | None:
        """Choose an instance and the next epoch; see `Prefillers`."""
        open_ones = [each for each in self._instances.values() if self._takes_orders(each)]
        waiting = self._waiting.get(sequence.sequence_id)
        if not open_ones or waiting is None:
            return None
        keys = prefix_keys(sequence.tokens)

        def cost(each: _Instance) -> tuple[bool, int, Peer]:
            """Who answers first, and among those who has least to compute until it is done with this."""
            num_until = each.num_tokens + sequence.num_tokens - each.affinity.num_known(keys)
            return self._is_silent(each), num_until, each.peer

        instance = min(open_ones, key=cost)
        epoch = Epoch(self._worker_id, self._life, self._next_number)
        self._next_number += 1
        self._opening = _Opening(epoch, instance, start, keys)
        return (_writer(epoch, instance.peer),)

    def _takes_orders(self, instance: _Instance) -> bool:
        """Whether it is there to stay, as far as is known: one that is leaving is announced no more."""
        return instance.link_id is not None and not instance.is_fencing and instance.endpoint in self._wanted

    def _has_other(self, instance: _Instance) -> bool:
        """Whether another instance is there and heard of."""
        others = [each for each in self._instances.values() if each is not instance and self._takes_orders(each)]
        return any(not self._is_silent(each) for each in others)

    def _is_silent(self, instance: _Instance) -> bool:
        """Whether it has not been heard of for longer than a step takes."""
        return self._seconds_silent(instance) > SILENT_SECONDS

    def _seconds_silent(self, instance: _Instance) -> float:
        """How long nothing was heard of it, heartbeats included; infinite while there is no link."""
        return float("inf") if instance.link_id is None else self._started.links.seconds_silent(instance.link_id)

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
        )
        receiver = rx.Receiver(opening.epoch, work, (opening.instance.peer,))
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
        instance = self._instances.get(peer)
        blocks = sum(len(receiver.work.block_ids) for receiver in self._unproven_of(peer))
        if instance is None or instance.link_id is not None or not blocks:
            return 0
        logger.warning("an operator vouches that %s, life %d, can write no more", peer.worker_id, peer.life)
        instance.admission.fence()  # what can be done is done, although it has proven nothing
        self._counts.num_vouched_blocks += blocks
        self._on_fenced(instance)
        return blocks

    def statistics(self) -> HandoffStatistics:
        """What became of the attempts so far, and what is open."""
        quarantined = [each.receiver for each in self._attempts.values() if each.receiver.is_quarantined]
        return HandoffStatistics(
            num_peers=sum(instance.link_id is not None for instance in self._instances.values()),
            num_open=len(self._attempts),
            num_done=self._counts.num_ready,
            num_failed={reason.value: count for reason, count in self._counts.failures.items()},
            num_tokens=self._counts.num_tokens,
            blocks_quarantined=sum(len(receiver.work.block_ids) for receiver in quarantined),
            blocks_vouched=self._counts.num_vouched_blocks,
            num_links_ended=self._started.links.statistics().by_ending(),
            quarantine=[each for peer in sorted(self._instances) for each in self._quarantined_by(peer)],
        )

    def _quarantined_by(self, peer: Peer) -> list[QuarantinedWriter]:
        receivers = self._unproven_of(peer)
        lost_at = self._instances[peer].lost_at
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
            case PeerConnected(link_id, hello, endpoint):
                self._on_connected(link_id, hello, endpoint)
            case PeerSaid(_, WritesDone() | LineClear() | WritesFailed() as message):
                attempt = self._attempts.get(message.epoch)
                if attempt is not None:
                    self._feed(attempt, rx.Received(message))
            case PeerSaid(_, message):
                logger.error("a prefill instance sent %s, which is for prefill instances", type(message).__name__)
            case PeerLost():
                self._on_lost(event)
            case LifeRefused(reason):
                raise LifeOverError(reason)
            case _:
                assert_never(event)

    def _on_connected(self, link_id: PeerLinkId, hello: PeerHello, endpoint: Endpoint | None) -> None:
        peer = Peer(WorkerId(hello.worker_id), hello.rank, hello.life)
        for older in [each for each in self._instances.values() if _is_older(each.peer, peer)]:
            self._lose(older, grace_seconds=0.0)
        instance = self._instances.get(peer)
        if (instance is not None and instance.is_fencing) or peer in self._fenced:
            self._started.links.refuse(link_id, f"life {peer.life} of {peer.worker_id} is fenced", ends_life=True)
            return
        if instance is not None:
            instance.link_id, instance.lost_at, instance.fence_at = link_id, None, None
            return
        try:
            admission = self._started.memory.admit(hello.writer)
        except MoverError as error:
            logger.error(  # noqa: TRY400 - the text says what is wrong
                "prefill instance %s, life %d, is not admitted: %s", peer.worker_id, peer.life, error
            )
            self._started.links.refuse(link_id, f"it is not admitted: {error}", ends_life=False)
            return
        logger.info("prefill instance %s, life %d, is connected", peer.worker_id, peer.life)
        self._instances[peer] = _Instance(peer, admission, link_id, endpoint)

    def _on_lost(self, event: PeerLost) -> None:
        greeting_seconds = 0.0 if event.was_silent else GREETING_SECONDS
        for instance in [each for each in self._instances.values() if each.link_id == event.link_id]:
            peer = instance.peer
            logger.warning("prefill instance %s, life %d, is lost: %s", peer.worker_id, peer.life, event.reason)
            self._lose(instance, grace_seconds=FENCE_GRACE_SECONDS, greeting_seconds=greeting_seconds)

    def _lose(self, instance: _Instance, *, grace_seconds: float, greeting_seconds: float = 0.0) -> None:
        instance.link_id = None
        instance.lost_at = self._now() if instance.lost_at is None else instance.lost_at
        instance.fence_at = self._now() + grace_seconds
        instance.greets_until = self._now() + greeting_seconds
        for attempt in self._attempts_with(instance.peer):
            self._feed(attempt, rx.PeerLost(instance.peer))

    def _try_fence(self, instance: _Instance, now: float) -> None:
        if instance.fence_at is None or instance.fence_at > now:
            return
        if not instance.is_fencing and now < instance.greets_until and self._is_greeting(instance):
            instance.fence_at = now + FENCE_POLL_SECONDS
            return
        instance.is_fencing = True
        if not instance.admission.fence():
            instance.fence_at = now + FENCE_POLL_SECONDS
            return
        self._on_fenced(instance)

    def _on_fenced(self, instance: _Instance) -> None:
        del self._instances[instance.peer]
        self._fenced.append(instance.peer)
        instance.admission.close()
        for attempt in self._attempts_with(instance.peer):
            self._feed(attempt, rx.Fenced(instance.peer))

    def _is_greeting(self, instance: _Instance) -> bool:
        """Whether somebody took a new connection where it was: its process is there, and will say hello."""
        return instance.endpoint is not None and self._started.links.is_greeting(instance.endpoint)

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
                self._send(message)
            case rx.ReleaseWriter(epoch, peer):
                self._started.scheduler.end_remote_write(_writer(epoch, peer))
            case rx.Ready():
                self._counts.num_ready += 1
                self._counts.num_tokens += attempt.num_tokens
                self._started.scheduler.arrive(attempt.sequence_id)
            case rx.Failed(_, reason):
                self._on_failed(attempt, reason)
            case rx.Settled(epoch):
                attempt.instance.num_tokens -= attempt.num_tokens
                del self._attempts[epoch]
            case _:
                assert_never(effect)

    def _send(self, message: ToRank) -> None:
        instance = self._instances.get(message.peer)
        if instance is not None and instance.link_id is not None:
            self._started.links.send(instance.link_id, message)

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


def _is_older(one: Peer, other: Peer) -> bool:
    return (one.worker_id, one.rank) == (other.worker_id, other.rank) and one.life < other.life
