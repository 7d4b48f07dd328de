"""What carries messages between two ranks; whoever calls waits. `RankCommunicator` makes transfers of them.

A message is a status, and after a good one a payload. Between two ranks and on one lane messages keep their order.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

from lineclear.base.errors import RankError
from lineclear.parallel.communicator import Lane

Sent: TypeAlias = Callable[[], None]
"""Waits until a message has left its buffers. Raises: RankLostError."""


class Wire(Protocol):
    """One rank's ends of the wires to all others. Order: one thread a lane."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the instance."""
        ...

    def send(self, lane: Lane, to_rank: int, error: RankError | None, payload: Tensor) -> Sent:
        """Begin to send a payload, or an error and no payload.

        Shapes: payload: contiguous; unchanged until it was sent.
        Raises: RankLostError, here or from what is returned.
        """
        ...

    def receive(self, lane: Lane, from_rank: int, into: Tensor) -> None:
        """Wait for a payload, of exactly the bytes of `into`.

        Raises: RankError if the other sent an error instead; RankLostError if nothing came within the deadline.
        """
        ...

    def close(self) -> None:
        """End it: whoever waits for this rank gets a RankLostError, at the latest at its deadline."""
        ...
