"""The prefill instances that a decode worker knows: who takes orders, who is lost, and the fence of who is lost.

An instance is one or more ranks, each a process with a link and an admission of its own, all of one life. It takes
orders while every rank of it is linked and admitted; each rank is lost, comes back and is fenced by itself.

    connected ──link lost──▶ lost ──grace──▶ fencing ──proven by the mover, or vouched for──▶ forgotten
        ▲                      │
        └──── comes back ──────┘

Invariants:
1. No order goes to a rank that this memory has not admitted, nor to one whose fence was begun.
2. A fence is proven by the mover, or an operator vouches for it; nothing else takes its place.

Order: one thread calls everything.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lineclear.base.ids import WorkerId
from lineclear.protocol.handoff.hello import PeerHello
from lineclear.protocol.handoff.messages import ForgetPrompt, ToRank
from lineclear.protocol.handoff.names import Peer
from lineclear.transport.endpoint import Endpoint
from lineclear.transport.movers.mover import Admission, Memory, MoverError
from lineclear.transport.peer_links import PeerConnected, PeerLinkId, PeerLinks, PeerLost
from lineclear.worker.affinity import Affinity

SILENT_SECONDS = 5.0
"""An instance of which a rank says nothing for so long, no heartbeat either, is left for another where there is one."""

FENCE_GRACE_SECONDS = 0.5
"""How long a lost link may come back before the rank's life is fenced."""

GREETING_SECONDS = 10.0
"""How long it may where a new connection has been taken: the rank says hello when its step is over."""

FENCE_POLL_SECONDS = 0.05

MAX_FENCED = 1024
"""Lives that are known to be fenced; an older one that comes back is not admitted by the mover."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Rank:
    """One rank of an instance, in one life."""

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
    to_forget: deque[ForgetPrompt] = field(default_factory=deque[ForgetPrompt])
    """What it is to be told when its link is back, before any order."""


@dataclass(slots=True)
class Instance:
    """One life of a prefill instance."""

    worker_id: WorkerId
    life: int
    num_ranks: int
    ranks: dict[int, Rank] = field(default_factory=dict[int, Rank])
    """Those that are known and not fenced."""
    num_tokens: int = 0
    """Of the attempts that are open with it."""
    affinity: Affinity = field(default_factory=Affinity)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """Its ranks, from the first on."""
        return tuple(self.ranks[number].peer for number in sorted(self.ranks))

    def __str__(self) -> str:
        return f"prefill instance {self.worker_id}, life {self.life}"


@dataclass(frozen=True, slots=True)
class _Parts:
    memory: Memory
    links: PeerLinks


class Instances:
    """All prefill instances that have said hello.

    Args:
        now: a clock, in seconds.
        on_lost, on_fenced: told of a rank that has no link any more, and of one that is proven to write no more.
    """

    def __init__(
        self, now: Callable[[], float], on_lost: Callable[[Peer], None], on_fenced: Callable[[Peer], None]
    ) -> None:
        self._now = now
        self._on_lost = on_lost
        self._on_fenced = on_fenced
        self._parts: _Parts | None = None
        self._instances: dict[tuple[WorkerId, int], Instance] = {}
        """By worker and life."""
        self._fenced: deque[Peer] = deque(maxlen=MAX_FENCED)
        """The latest, some of which may live and come back."""
        self._wanted: frozenset[Endpoint] = frozenset()

    def start(self, memory: Memory, links: PeerLinks) -> None:
        """Take the memory that admits the ranks, and the links to them."""
        self._parts = _Parts(memory, links)

    def want(self, endpoints: frozenset[Endpoint]) -> None:
        """Stay connected to these, and order from no others."""
        self._wanted = endpoints
        self._links.want(endpoints)

    @property
    def num_linked(self) -> int:
        """Ranks with a link."""
        return sum(rank.link_id is not None for rank in self.ranks())

    def ranks(self) -> Iterator[Rank]:
        """Every rank that is known and not fenced, by worker, life and number."""
        for key in sorted(self._instances):
            yield from (rank for _, rank in sorted(self._instances[key].ranks.items()))

    def find(self, peer: Peer) -> Rank | None:
        """The rank that a proof or an order names; None if it is unknown or fenced."""
        instance = self._instances.get((peer.worker_id, peer.life))
        return None if instance is None else instance.ranks.get(peer.rank)

    def open_ones(self) -> list[Instance]:
        """The instances that take orders."""
        return [each for each in self._instances.values() if self._takes_orders(each)]

    def has_other(self, instance: Instance) -> bool:
        """Whether another instance takes orders and is heard of."""
        return any(each is not instance and not self.is_silent(each) for each in self.open_ones())

    def is_silent(self, instance: Instance) -> bool:
        """Whether a rank of it has not been heard of for longer than a step takes."""
        return self.seconds_silent(instance) > SILENT_SECONDS

    def seconds_silent(self, instance: Instance) -> float:
        """How long nothing was heard of one of its ranks, heartbeats included; infinite while one has no link."""
        if len(instance.ranks) < instance.num_ranks:
            return float("inf")
        return max(
            float("inf") if rank.link_id is None else self._links.seconds_silent(rank.link_id)
            for rank in instance.ranks.values()
        )

    def next_due(self) -> float:
        """When to call `try_fences` at the latest."""
        return min((rank.fence_at for rank in self.ranks() if rank.fence_at is not None), default=float("inf"))

    def send(self, message: ToRank) -> None:
        """Send to the rank that a message names; it is lost where there is no link."""
        rank = self.find(message.peer)
        if rank is not None and rank.link_id is not None:
            self._links.send(rank.link_id, message)

    def forget_prompt(self, worker_id: str, token_ids: tuple[int, ...]) -> None:
        """Have an instance give up what it has of a prompt, now or when its link is back; a life that is over has."""
        for instance in self._instances.values():
            first = instance.ranks.get(0) if instance.worker_id == worker_id else None
            if first is not None and first.link_id is None:
                first.to_forget.append(ForgetPrompt(first.peer, token_ids))
            elif first is not None and first.link_id is not None:
                self._links.send(first.link_id, ForgetPrompt(first.peer, token_ids))

    def take_in(self, event: PeerConnected) -> None:
        """Admit a rank that has said hello, find it known, or refuse it."""
        hello = event.hello
        peer = Peer(WorkerId(hello.worker_id), hello.rank, hello.life)
        for older in [each for each in self.ranks() if _is_older(each.peer, peer)]:
            self._lose(older, grace_seconds=0.0)
        refusal = self._what_is_wrong(peer, hello)
        if refusal is not None:
            self._links.refuse(event.link_id, refusal, ends_life=True)
            return
        rank = self.find(peer)
        if rank is not None:
            rank.link_id, rank.lost_at, rank.fence_at = event.link_id, None, None
            while rank.to_forget:
                self._links.send(event.link_id, rank.to_forget.popleft())
            return
        try:
            admission = self._started.memory.admit(hello.writer)
        except MoverError as error:
            logger.error(  # noqa: TRY400 - the text says what is wrong
                "%s is not admitted: %s", _described(peer, hello.num_ranks), error
            )
            self._links.refuse(event.link_id, f"it is not admitted: {error}", ends_life=False)
            return
        logger.info("%s is connected", _described(peer, hello.num_ranks))
        instance = self._instances.setdefault(
            (peer.worker_id, peer.life), Instance(peer.worker_id, peer.life, hello.num_ranks)
        )
        instance.ranks[peer.rank] = Rank(peer, admission, event.link_id, event.endpoint)

    def lose(self, event: PeerLost) -> None:
        """A link has ended: whoever was at its other end may come back for a while, and is fenced then."""
        greeting_seconds = 0.0 if event.was_silent else GREETING_SECONDS
        for rank in [each for each in self.ranks() if each.link_id == event.link_id]:
            logger.warning("%s is lost: %s", _described(rank.peer, self._num_ranks(rank)), event.reason)
            self._lose(rank, grace_seconds=FENCE_GRACE_SECONDS, greeting_seconds=greeting_seconds)

    def try_fences(self) -> None:
        """Try the fence of every rank that is lost for long enough."""
        now = self._now()
        for rank in [each for each in self.ranks() if each.fence_at is not None and each.fence_at <= now]:
            if not rank.is_fencing and now < rank.greets_until and self._is_greeting(rank):
                rank.fence_at = now + FENCE_POLL_SECONDS
                continue
            rank.is_fencing = True
            if rank.admission.fence():
                self._forget(rank)
            else:
                rank.fence_at = now + FENCE_POLL_SECONDS

    def vouch(self, rank: Rank) -> None:
        """An operator says that a lost rank can write no more: it counts as fenced from now on, for good."""
        logger.warning("an operator vouches that %s can write no more", _described(rank.peer, self._num_ranks(rank)))
        rank.admission.fence()  # what can be done is done, although it has proven nothing
        self._forget(rank)

    def _what_is_wrong(self, peer: Peer, hello: PeerHello) -> str | None:
        """Why nothing of this life is taken."""
        known = self.find(peer)
        if (known is not None and known.is_fencing) or peer in self._fenced:
            return f"life {peer.life} of {peer.worker_id} is fenced"
        instance = self._instances.get((peer.worker_id, peer.life))
        if instance is not None and instance.num_ranks != hello.num_ranks:
            return f"num_ranks: got {hello.num_ranks} of rank {peer.rank}, {instance.num_ranks} of another"
        return None

    def _takes_orders(self, instance: Instance) -> bool:
        """Whether it is there to stay, as far as is known: one that is leaving is announced no more."""
        return len(instance.ranks) == instance.num_ranks and all(
            rank.link_id is not None and not rank.is_fencing and rank.endpoint in self._wanted
            for rank in instance.ranks.values()
        )

    def _lose(self, rank: Rank, *, grace_seconds: float, greeting_seconds: float = 0.0) -> None:
        rank.link_id = None
        rank.lost_at = self._now() if rank.lost_at is None else rank.lost_at
        rank.fence_at = self._now() + grace_seconds
        rank.greets_until = self._now() + greeting_seconds
        self._on_lost(rank.peer)

    def _forget(self, rank: Rank) -> None:
        peer = rank.peer
        instance = self._instances[peer.worker_id, peer.life]
        del instance.ranks[peer.rank]
        if not instance.ranks:
            del self._instances[peer.worker_id, peer.life]
        self._fenced.append(peer)
        rank.admission.close()
        self._on_fenced(peer)

    def _is_greeting(self, rank: Rank) -> bool:
        """Whether somebody took a new connection where it was: its process is there, and will say hello."""
        return rank.endpoint is not None and self._links.is_greeting(rank.endpoint)

    def _num_ranks(self, rank: Rank) -> int:
        return self._instances[rank.peer.worker_id, rank.peer.life].num_ranks

    @property
    def _links(self) -> PeerLinks:
        return self._started.links

    @property
    def _started(self) -> _Parts:
        assert self._parts is not None, "the instances are not started"
        return self._parts


def _is_older(one: Peer, other: Peer) -> bool:
    return one.worker_id == other.worker_id and one.life < other.life


def _described(peer: Peer, num_ranks: int) -> str:
    """Name a rank for people; one that is alone is its instance."""
    rank = f", rank {peer.rank} of {num_ranks}" if num_ranks > 1 else ""
    return f"prefill instance {peer.worker_id}{rank}, life {peer.life}"
