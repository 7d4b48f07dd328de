"""The network: the set of all messages ever sent, as a bit mask.

Any of them may arrive at any time, any number of times, or never. So loss, duplication and overtaking need no moves
of their own, and a world never gets smaller by an arrival.
"""

from collections.abc import Iterator

from lineclear.protocol.handoff.messages import Abort, HandoffMessage, PrefillOrder
from lineclear.testing.handoff.world import World


class Network:
    """Numbers messages in the order in which a search first sends them."""

    def __init__(self) -> None:
        self.messages: list[HandoffMessage] = []
        self._bits: dict[HandoffMessage, int] = {}

    def bit_of(self, message: HandoffMessage) -> int:
        """Return a message's bit."""
        bit = self._bits.get(message)
        if bit is None:
            bit = self._bits[message] = 1 << len(self.messages)
            self.messages.append(message)
        return bit

    def send(self, world: World, message: HandoffMessage) -> World:
        """Return the world in which a message was sent."""
        bit = self.bit_of(message)
        return world if world.net & bit else world._replace(net=world.net | bit)

    def sent(self, net: int) -> Iterator[tuple[int, HandoffMessage]]:
        """Yield the messages of a mask, and their bits."""
        while net:
            bit = net & -net
            net ^= bit
            yield bit, self.messages[bit.bit_length() - 1]

    def overtakes(self, world: World, message: HandoffMessage) -> bool:
        """Whether a message would be the first word of its attempt at a rank that has not heard of an earlier one."""
        if not isinstance(message, PrefillOrder | Abort):
            return False
        sender = world.ranks[message.peer.rank].sender
        return any(
            isinstance(other, PrefillOrder)
            and other.peer == message.peer
            and other.epoch < message.epoch
            and sender.is_newer(other.epoch)
            for _, other in self.sent(world.net)
        )
