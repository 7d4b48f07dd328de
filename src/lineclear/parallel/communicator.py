"""What ranks of one instance say to each other: broadcasts from an owner, and gathers of everybody's rows.

Invariants:
1. Transfers of one lane happen one after the other, in the order in which they were begun; every rank begins the same
   transfers of a lane in the same order. Lanes do not know of each other, so they cannot be mixed up.
2. Every transfer ends: with its payload, with the `RankError` of a rank that failed, or with a `RankLostError` once a
   rank was not heard of within the deadline. After the latter every transfer fails.
3. A failure that is not a loss leaves every lane in step: the transfer counts as done on all ranks.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from lineclear.base.errors import RankError

Fill: TypeAlias = Callable[[], None]
"""Puts what the owner sends into its buffer. It may wait; what it raises is what all ranks get."""


class Lane(Enum):
    """A queue of transfers of its own."""

    INDEX = "index"
    """Broadcasts of index parts."""
    LATENT = "latent"
    """Broadcasts of latent parts."""
    ROWS = "rows"
    """Gathers of a layer's new KV rows."""
    CONTROL = "control"
    """Gathers of what all ranks decide by."""


class Cargo(NamedTuple):
    """What a transfer brings, for counts and timelines."""

    layer: int
    part: str
    """Of a broadcast; "rows" where a gather brings those of all parts."""


class Pending(Protocol):
    """A transfer that was begun."""

    def wait(self) -> None:
        """Let what comes after this see the payload.

        Raises: RankError of the rank that failed, RankLostError of one that is gone.
        """
        ...


class Communicator(Protocol):
    """One rank's end. Order: one thread calls everything."""

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the instance."""
        ...

    def broadcast(self, lane: Lane, owner: int, buffer: Tensor, fill: Fill, cargo: Cargo | None = None) -> Pending:
        """Begin to bring the owner's buffer into everybody's.

        Order: `fill` runs on the owner alone, when the lane gets to it. Nobody else touches the buffer until the end.
        Shapes: buffer: contiguous, of the same bytes on every rank.
        """
        ...

    def gather(
        self,
        lane: Lane,
        rows: Tensor,
        into: Tensor,
        counts: Sequence[int],
        error: RankError | None = None,
        cargo: Cargo | None = None,
    ) -> Pending:
        """Begin to bring everybody's rows to everybody; with an `error`, that instead of this rank's rows.

        Where several ranks have an error, all of them get the same: that which names the lowest rank.

        Shapes: rows: [counts[rank], width]; into: [sum(counts), width], contiguous, rank 0's rows first.
        """
        ...

    def close(self) -> None:
        """End it; peers that still wait for this rank get a RankLostError."""
        ...
