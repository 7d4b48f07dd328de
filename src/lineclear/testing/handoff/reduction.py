"""Which worlds need not be told apart.

- **dead messages**: a message that can change nothing any more, now or later, is taken out of the network: one to a
life
  that is over; one to decode about an attempt that is settled; one to a rank about an attempt that decode has
  settled, that has no record there, and that is not newer than what the rank has heard of. Each stays so once it is
  so. Sound for the production machines only: mutants are explored without.
- **requests**: nothing refers to one by its place, so their order does not matter.

Two ranks are not alike: one of them samples.
"""

from dataclasses import dataclass

from lineclear.protocol.handoff.messages import Abort, HandoffMessage, PrefillOrder
from lineclear.protocol.handoff.names import Epoch
from lineclear.testing.handoff.network import Network
from lineclear.testing.handoff.world import Request, World


@dataclass(frozen=True, slots=True)
class Likeness:
    """What is taken to be alike."""

    dead_messages: bool = False
    requests: bool = False


NOTHING_ALIKE = Likeness()
ALL_ALIKE = Likeness(dead_messages=True, requests=True)


class Reduction:
    """Finds the world that stands for all that are alike."""

    def __init__(self, network: Network, likeness: Likeness) -> None:
        self._network = network
        self._likeness = likeness

    def __call__(self, world: World) -> World:
        """Return the world that stands for this one."""
        if self._likeness.dead_messages and world.net:
            dead = self.dead_messages(world)
            world = world._replace(net=world.net & ~dead) if dead else world
        if self._likeness.requests:
            requests = tuple(sorted(world.requests, key=_request_order))
            world = world if requests == world.requests else world._replace(requests=requests)
        return world

    def dead_messages(self, world: World) -> int:
        """Return the mask of messages that can change nothing any more."""
        unsettled = {receiver.epoch for receiver in world.decode.receivers}
        dead = 0
        for bit, message in self._network.sent(world.net):
            if _is_dead(world, unsettled, message):
                dead |= bit
        return dead


def _is_dead(world: World, unsettled: set[Epoch], message: HandoffMessage) -> bool:
    epoch, peer = message.epoch, message.peer
    if not isinstance(message, PrefillOrder | Abort):
        return epoch not in unsettled
    sender = world.ranks[peer.rank].sender
    if peer != sender.peer:
        return peer.life < sender.peer.life
    if epoch in unsettled or sender.is_newer(epoch):
        return False
    return sender.find(epoch) is None and sender.find_done(epoch) is None


def _request_order(request: Request) -> tuple[str, str, int]:
    return (request.phase, repr(request.epoch), request.attempts)
