"""The shells around the machines: an event goes in, effects are performed on the world.

These are what workers do with real sockets, pools and movers; there is no decision here. The steps are fields, so
that a negative control can put another in their place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from lineclear.kv.pool import Holder, HolderKind
from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.messages import PrefillWork
from lineclear.protocol.handoff.names import Epoch, Peer, writer_number
from lineclear.testing.explorer import Violation
from lineclear.testing.handoff.blocks import acquire, release, release_if_held
from lineclear.testing.handoff.network import Network
from lineclear.testing.handoff.scenario import Physics, Scenario
from lineclear.testing.handoff.world import (
    Landing,
    Request,
    RequestPhase,
    World,
    Write,
    WriteState,
    peer_of,
    with_rank,
    with_request,
    with_source,
)

ReceiverStep = Callable[[rx.Receiver, rx.ReceiverEvent], rx.Step]
SenderStep = Callable[[tx.Sender, tx.SenderEvent], tx.Step]


@dataclass(frozen=True)
class Machines:
    """The machines to explore: the production ones, or mutants."""

    receiver_step: ReceiverStep = rx.step
    sender_step: SenderStep = tx.step
    new_sender: Callable[[Peer], tx.Sender] = tx.Sender
    on_post: Callable[[tx.Sender, Write], tx.Sender] | None = None
    """For a mutant that counts a write only when it is really posted."""


@dataclass(frozen=True)
class Shells:
    """Performs effects."""

    scenario: Scenario
    physics: Physics
    machines: Machines
    network: Network

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.scenario.block_size or self.scenario.num_tokens

    def holders_of(self, epoch: Epoch) -> frozenset[Holder]:
        """Return every hold that an attempt may have on a block."""
        peers = (peer_of(rank, 0) for rank in range(self.scenario.num_ranks))
        return frozenset((sequence_holder(epoch), *(writer_holder(epoch, peer) for peer in peers)))

    def to_sender(self, world: World, rank_index: int, event: tx.SenderEvent) -> World:
        """Give an event to a rank's sender."""
        rank = world.ranks[rank_index]
        sender, effects = self.machines.sender_step(rank.sender, event)
        if sender is not rank.sender:
            world = with_rank(world, rank_index, rank._replace(sender=sender))
        for effect in effects:
            world = self._perform_sender(world, rank_index, effect)
        return world

    def to_receivers(self, world: World, event: rx.ReceiverEvent) -> World:
        """Give an event to every receiver."""
        for receiver in world.decode.receivers:
            world = self.to_receiver(world, receiver, event)
        return world

    def to_receiver(self, world: World, receiver: rx.Receiver, event: rx.ReceiverEvent) -> World:
        """Give an event to a receiver."""
        after, effects = self.machines.receiver_step(receiver, event)
        if after is not receiver:
            receivers = tuple(after if other is receiver else other for other in world.decode.receivers)
            world = world._replace(decode=world.decode._replace(receivers=receivers))
        for effect in effects:
            world = self._perform_receiver(world, after, effect)
        if after.phase is not rx.ReceiverPhase.WAITING:
            world = _without_landings(world, after.epoch)
        return world

    def release_writers(self, world: World, receiver: rx.Receiver) -> World:
        """End the holds of all of an attempt's writers, proof or not: what no correct shell does."""
        for peer in receiver.peers:
            holder = writer_holder(receiver.epoch, peer)
            world = world._replace(blocks=release_if_held(world.blocks, receiver.work.block_ids, holder))
        return world

    def _perform_sender(self, world: World, rank_index: int, effect: tx.SenderEffect) -> World:
        rank = world.ranks[rank_index]
        match effect:
            case tx.Send(message):
                return self.network.send(world, message)
            case tx.BeginPrefill(epoch):
                return with_rank(world, rank_index, rank._replace(queue=tuple(sorted((*rank.queue, epoch)))))
            case tx.StopPrefill(epoch):
                queue = tuple(other for other in rank.queue if other != epoch)
                return with_rank(world, rank_index, rank._replace(queue=queue))
            case tx.PostWrite():
                return self._count_write(world, rank_index, effect)
            case tx.ReleaseSource(epoch):
                for slot, source in enumerate(rank.sources):
                    if source is not None and source.epoch == epoch:
                        return with_source(world, rank_index, slot, source._replace(is_held=False))
                return world
            case _:
                assert_never(effect)

    def _count_write(self, world: World, rank_index: int, effect: tx.PostWrite) -> World:
        rank = world.ranks[rank_index]
        record = rank.sender.find(effect.epoch)
        if record is None:
            raise Violation("R1: a write is posted without a record")
        slot = next(i for i, source in enumerate(rank.sources) if source is not None and source.epoch == effect.epoch)
        block_id = record.work.block_ids[(effect.start - record.work.start) // self.block_size]
        write = Write(
            effect.epoch,
            rank.sender.peer,
            effect.write_id,
            effect.start,
            block_id,
            _memory_of(record.work),
            slot,
            WriteState.COUNTED,
        )
        return world._replace(writes=tuple(sorted((*world.writes, write))))

    def _perform_receiver(self, world: World, receiver: rx.Receiver, effect: rx.ReceiverEffect) -> World:
        match effect:
            case rx.Send(message):
                return self.network.send(world, message)
            case rx.ReleaseWriter(epoch, peer):
                return self._release(world, receiver.work.block_ids, writer_holder(epoch, peer))
            case rx.Ready():
                return self._ready(world, receiver)
            case rx.Failed(epoch):
                return self._fail(world, receiver, epoch)
            case rx.Settled(epoch):
                receivers = tuple(other for other in world.decode.receivers if other.epoch != epoch)
                return world._replace(decode=world.decode._replace(receivers=receivers))
            case _:
                assert_never(effect)

    def _release(self, world: World, block_ids: tuple[int, ...], holder: Holder) -> World:
        end_hold = release if self.physics.strict else release_if_held
        return world._replace(blocks=end_hold(world.blocks, block_ids, holder))

    def _ready(self, world: World, receiver: rx.Receiver) -> World:
        landed = world.decode.landed
        for peer in receiver.peers:
            for position in range(receiver.work.start, receiver.work.end):
                if Landing(receiver.epoch, peer, position) not in landed:
                    raise Violation("P2: ready before everything was written")
        index, request = _running(world, receiver.epoch)
        world = with_request(world, index, request._replace(phase=RequestPhase.DECODING))
        return world._replace(blocks=acquire(world.blocks, receiver.work.block_ids, sequence_holder(receiver.epoch)))

    def _fail(self, world: World, receiver: rx.Receiver, epoch: Epoch) -> World:
        index, request = _running(world, epoch)
        if request.attempts > 1:
            world = with_request(world, index, Request(RequestPhase.QUEUED, None, request.attempts - 1))
        else:
            world = with_request(world, index, request._replace(phase=RequestPhase.ENDED))
        return world if self.physics.hold_outlives_request else self.release_writers(world, receiver)


def writer_holder(epoch: Epoch, peer: Peer) -> Holder:
    """Return the pool's name for a peer's writer hold."""
    return Holder(HolderKind.WRITER, writer_number(epoch, peer))


def sequence_holder(epoch: Epoch) -> Holder:
    """Return the pool's name for the hold of the sequence that decodes what an attempt brought."""
    return Holder(HolderKind.SEQUENCE, epoch.number)


def memory_key(memory: int) -> bytes:
    """Return the key of a registration of memory."""
    return memory.to_bytes(2, "big")


def _memory_of(work: PrefillWork) -> int:
    return int.from_bytes(work.memory_key, "big")


def _running(world: World, epoch: Epoch) -> tuple[int, Request]:
    for index, request in enumerate(world.requests):
        if request.phase is RequestPhase.RUNNING and request.epoch == epoch:
            return index, request
    raise Violation("P4: a second outcome for a request")


def _without_landings(world: World, epoch: Epoch) -> World:
    landed = world.decode.landed
    if not any(landing.epoch == epoch for landing in landed):
        return world
    kept = frozenset(landing for landing in landed if landing.epoch != epoch)
    return world._replace(decode=world.decode._replace(landed=kept))
