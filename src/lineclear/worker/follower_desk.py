"""The side of handoffs of every rank but the first: it writes its own parts of what all ranks compute.

    rank 0: OrderBegun ──▶ Received(order) ──▶ BeginPrefill
            OrderComputed ──▶ ChunkComputed ──▶ PostWrite ──▶ … ──▶ WritesDone | LineClear ──▶ SourceReleased

An order is obeyed when rank 0 says that it has begun, and not before: a decode worker's own words about one that is new
here are a question that comes too early, and are asked again. Everything else it answers by itself, aborts above all.

Invariants:
    1. Every OrderBegun is answered by one SourceReleased, when nothing of this rank can read the source blocks: at once
       if the order was given up before, and otherwise with ReleaseSource.
    2. Orders are obeyed in the order in which rank 0 has obeyed them, and each decode worker's are in its own.
"""

from collections.abc import Callable
from typing import assert_never

from lineclear.base.ids import BlockId
from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.messages import PrefillOrder
from lineclear.protocol.handoff.names import Epoch
from lineclear.protocol.handoff.ranks import (
    OrderBegun,
    OrderComputed,
    OrderStopped,
    SourceReleased,
    ToFollower,
    ToLeader,
)
from lineclear.transport.peer_links import PeerEvent, PeerSaid
from lineclear.worker.sender_desk import Job, RankParts, SenderDesk


class FollowerDesk(SenderDesk):
    """One rank that computes what rank 0 plans.

    Args:
        parts: as any rank's.
        tell: sends to rank 0.
    """

    def __init__(self, parts: RankParts, tell: Callable[[ToLeader], None]) -> None:
        super().__init__(parts)
        self._tell = tell
        self._begun: set[Epoch] = set()
        """Those whose release rank 0 waits for."""

    def on_leader(self, message: ToFollower) -> None:
        """Rank 0 says how an order stands; order: after this rank's part of the steps that it said so after."""
        match message:
            case OrderBegun():
                self._on_begun(message)
            case OrderComputed():
                self._on_computed(message)
            case OrderStopped(epoch):
                self._feed(tx.PrefillFailed(epoch))
            case _:
                assert_never(message)

    def _on_begun(self, begun: OrderBegun) -> None:
        epoch = begun.epoch
        known = self._decodes.get(epoch.worker_id)
        if known is None or known.life <= epoch.life:
            self._meet(epoch.worker_id, epoch.life, begun.num_blocks).memory_key = begun.work.memory_key
        self._begun.add(epoch)
        self._feed(tx.Received(PrefillOrder(epoch, self._sender.peer, begun.work)))
        if self._sender.find(epoch) is None:  # it was given up before it came here
            self._let_go(epoch)

    def _on_computed(self, computed: OrderComputed) -> None:
        self._step_seconds = self._now() - self._turned_at
        job = self._jobs.get(computed.epoch)
        if job is None:
            return
        num_missing = computed.first_block - len(job.source)
        job.source += [BlockId(0)] * num_missing  # what decode has already, and this rank does not write
        job.source[computed.first_block :] = computed.block_ids
        self._feed(tx.ChunkComputed(computed.epoch, computed.end))

    def _on_link(self, event: PeerEvent) -> None:
        match event:
            case PeerSaid(_, PrefillOrder(epoch)) if self._sender.is_newer(epoch):
                return
            case _:
                super()._on_link(event)

    def _begin(self, epoch: Epoch, job: Job) -> None:
        """Nothing to do: rank 0 has begun already."""

    def _stop(self, epoch: Epoch) -> None:
        """Nothing to do: rank 0 hears of it from the decode worker."""

    def _let_go(self, epoch: Epoch) -> None:
        self._begun.remove(epoch)
        self._tell(SourceReleased(epoch))
