"""The handoff for the explorer: all moves of a world, what must hold in it, and what may remain of it at rest."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from lineclear.kv.pool import Holder, HolderKind
from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.messages import Abort, HandoffMessage, PrefillOrder
from lineclear.testing.explorer import Move, MoveKind, Violation
from lineclear.testing.handoff.decode_moves import membership_moves, request_moves, writers_of
from lineclear.testing.handoff.network import Network
from lineclear.testing.handoff.prefill_moves import new_rank, rank_moves
from lineclear.testing.handoff.reduction import NOTHING_ALIKE, Likeness, Reduction
from lineclear.testing.handoff.scenario import NetworkKind, Physics, Scenario
from lineclear.testing.handoff.shells import Machines, Shells, sequence_holder, writer_holder
from lineclear.testing.handoff.world import Decode, Rank, Request, RequestPhase, World
from lineclear.testing.handoff.write_moves import write_moves


class HandoffModel:
    """The model of one scenario. `likeness`: which worlds need not be told apart (see `reduction`)."""

    def __init__(
        self,
        scenario: Scenario,
        physics: Physics | None = None,
        machines: Machines | None = None,
        likeness: Likeness = NOTHING_ALIKE,
    ) -> None:
        self.scenario = scenario
        self.physics = physics or Physics()
        self.network = Network()
        self.shells = Shells(scenario, self.physics, machines or Machines(), self.network)
        self._reduction = Reduction(self.network, likeness)

    def start(self) -> World:
        """Return the first world: nothing has happened, every request waits."""
        scenario = self.scenario
        decode = Decode(0, 0, 1, (0,) * scenario.num_ranks, (), frozenset(), frozenset())
        return World(
            requests=(Request(attempts=scenario.num_attempts),) * scenario.num_requests,
            decode=decode,
            blocks=(frozenset[Holder](),) * scenario.num_blocks,
            ranks=tuple(new_rank(self.shells, rank, 0) for rank in range(scenario.num_ranks)),
            net=0,
            writes=(),
            budget=scenario.budget,
        )

    def moves(self, world: World) -> Iterator[Move[World]]:
        """Yield everything that can happen."""
        yield from write_moves(self.shells, world)
        yield from rank_moves(self.shells, world)
        yield from self._arrivals(world)
        yield from request_moves(self.shells, world)
        yield from membership_moves(self.shells, world)

    def normal(self, world: World) -> World:
        """Return the world that stands for all that are alike."""
        return self._reduction(world)

    def check(self, world: World) -> None:
        """Check that every hold on a destination block is somebody's, who will end it.

        Raises: Violation if not.
        """
        rightful = set(writers_of(world.decode.receivers))
        decoding = {
            sequence_holder(request.epoch)
            for request in world.requests
            if request.phase is RequestPhase.DECODING and request.epoch is not None
        }
        for block_id, holders in enumerate(world.blocks):
            for holder in holders:
                if holder.kind is HolderKind.WRITER and (block_id, holder) not in rightful:
                    raise Violation("P5: nobody will end a writer's hold")
                if holder.kind is HolderKind.SEQUENCE and holder not in decoding:
                    raise Violation("P5: a request that is over holds a block")
        if self.physics.strict:
            _require_holds(world, rightful)

    def at_rest(self) -> "RestingHandoff":
        """Return the same model as seen once faults stop."""
        return RestingHandoff(self)

    def _arrivals(self, world: World) -> Iterator[Move[World]]:
        kind = self.scenario.network
        for bit, message in self.network.sent(world.net):
            if kind is NetworkKind.IN_ORDER and self.network.overtakes(world, message):
                continue
            before = world._replace(net=world.net ^ bit) if kind is NetworkKind.EXACT else world
            yield Move(("arrive", message), MoveKind.FAIR, partial(self._arrive, before, message))

    def _arrive(self, world: World, message: HandoffMessage) -> World:
        if not isinstance(message, PrefillOrder | Abort):
            return self.shells.to_receivers(world, rx.Received(message))
        if self.physics.refusals_are_earned and isinstance(message, PrefillOrder):
            _check_refusal(world, message)
        return self.shells.to_sender(world, message.peer.rank, tx.Received(message))


class RestingHandoff:
    """A handoff model on a good network: what is sent from now on arrives once."""

    def __init__(self, model: HandoffModel) -> None:
        self._model = model
        self._asks_again = model.scenario.network is not NetworkKind.EXACT
        self._exact = HandoffModel(
            replace(model.scenario, network=NetworkKind.EXACT), model.physics, model.shells.machines
        )
        self._exact.network = model.network
        self._exact.shells = model.shells

    def moves(self, world: World) -> Iterator[Move[World]]:
        """Yield what can happen."""
        return self._exact.moves(world)

    def normal(self, world: World) -> World:
        """Return the world that stands for all that are alike."""
        return self._model.normal(world)

    def lose_messages(self, world: World) -> World:
        """Return the world in which nothing is on its way; where the network is exact, nothing is lost."""
        return world._replace(net=0) if self._asks_again else world

    def ask_again(self, world: World) -> World:
        """Return the world after a tick of every receiver; where the network is exact, nobody asks again."""
        return self._model.shells.to_receivers(world, rx.Tick()) if self._asks_again else world

    def leftovers(self, world: World, *, everything: bool) -> str | None:
        """Return what is wrong with a world at rest."""
        if any(request.phase is not RequestPhase.ENDED for request in world.requests):
            return "P4: a request never ends"
        excused = set[Holder]() if everything else self._excused(world)
        for block_id, holders in enumerate(world.blocks):
            if holders - excused:
                return f"P5: block {block_id} stays held"
        for rank in world.ranks:
            wrong = _leftovers_of(rank, everything=everything)
            if wrong is not None:
                return wrong
        return None

    def _excused(self, world: World) -> set[Holder]:
        """Holds of writers that are dead and not fenced, or have an unknown write."""
        excused: set[Holder] = set()
        for receiver in world.decode.receivers:
            for peer in receiver.unproven:
                sender = world.ranks[peer.rank].sender
                record = sender.find(receiver.epoch)
                is_unknown = self._model.physics.unknown_is_excused and record is not None and bool(record.unknown)
                if sender.peer != peer or is_unknown:
                    excused.add(writer_holder(receiver.epoch, peer))
        return excused


def _leftovers_of(rank: Rank, *, everything: bool) -> str | None:
    sender = rank.sender
    for source in rank.sources:
        if source is not None:
            record = sender.find(source.epoch)
            if everything or record is None or not record.unknown:
                return f"P5: a source block of rank {sender.peer.rank} stays held"
    if any(everything or not record.unknown for record in sender.records):
        return f"P5: rank {sender.peer.rank} never settles a handoff"
    return None


def _require_holds(world: World, rightful: set[tuple[int, Holder]]) -> None:
    for block_id, holder in rightful:
        if holder not in world.blocks[block_id]:
            raise Violation("R6: an unproven writer has no hold")


def _check_refusal(world: World, order: PrefillOrder) -> None:
    sender = world.ranks[order.peer.rank].sender
    waits = any(each.epoch == order.epoch and each.phase is rx.ReceiverPhase.WAITING for each in world.decode.receivers)
    has_record = sender.find(order.epoch) is not None or sender.find_done(order.epoch) is not None
    if waits and order.peer == sender.peer and not has_record and not sender.is_newer(order.epoch):
        raise Violation("an order that nobody gave up is refused")
