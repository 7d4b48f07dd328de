"""The worker's side of handoffs, as its loop sees it.

A desk turns what peers, movers and the clock bring into events of the handoff machines, and performs their effects.
Everything is called by the loop's thread, between two engine steps.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from lineclear.protocol.handoff.names import Peer
from lineclear.protocol.wire import HandoffStatistics
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.sequence import Sequence


class LifeOverError(Exception):
    """This life of the worker is of no use to its peers any more: the process has to end, and another one to begin."""


class LeaveRequest(Protocol):
    """What loops need of a wish to leave."""

    @property
    def is_set(self) -> bool:
        """Whether somebody wants this worker to leave."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable from then on."""
        ...


class Desk(Protocol):
    """What the loop needs of a desk."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is open that would still end by itself."""
        ...

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `turn` has something to do before it is due."""
        ...

    def seconds_until_due(self) -> float:
        """How long `turn` may be put off while nothing is readable."""
        ...

    def submit(self, sequence: Sequence) -> None:
        """A sequence of the gateway is about to be submitted to the engine."""
        ...

    def on_instances(self, endpoints: Collection[str]) -> None:
        """The gateway tells where the prefill instances are, all of them.

        Raises:
            PeerError: One is no endpoint.
        """
        ...

    def turn(self) -> None:
        """Take in what peers and movers say and what time brings.

        Raises:
            LifeOverError: The process has to end.
        """
        ...

    def on_updates(self, updates: Iterable[SequenceUpdate]) -> None:
        """Take in what a step brought."""
        ...

    def vouch(self, peer: Peer) -> int:
        """An operator says that a life can write no more; how many blocks that lets out of quarantine."""
        ...

    def statistics(self) -> HandoffStatistics:
        """What became of the handoffs so far, and what is open."""
        ...
