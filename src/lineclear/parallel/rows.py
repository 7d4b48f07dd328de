"""Gathers the new KV rows of all ranks, one layer after the other, all parts of a layer together.

Invariants:
1. Every rank begins the gathers of the same layers in the same order: those that a pass did not come to because it
   failed are begun with the failure instead of rows (`fail_rest`).
2. Nobody gets a layer's rows before they are there (`take` waits).
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from lineclear.base.errors import InvariantError, RankError
from lineclear.model.batch import Part
from lineclear.parallel.communicator import Cargo, Communicator, Lane, Pending
from lineclear.parallel.meter import COMPUTING, Happening, Meter

PartWidths: TypeAlias = Mapping[Part, int]
"""The parts of a layer, and how many values of each a token has."""

ROWS = "rows"


def failure_of(pending: Pending) -> RankError | None:
    """How a transfer ended, when it has."""
    try:
        pending.wait()
    except RankError as error:
        return error
    return None


class RowGathers:
    """The gathers of some layers, in their order.

    Args:
        communicator: all ranks'.
        widths: the layers, in the order of a pass, and their parts.
        counts: rows that each rank gives.
        like: an empty tensor of the rows' type and device.
        meter: hears of waits.
    """

    def __init__(
        self,
        communicator: Communicator,
        widths: Mapping[int, PartWidths],
        counts: Sequence[int],
        like: Tensor,
        meter: Meter,
    ) -> None:
        self._communicator = communicator
        self._widths = widths
        self._counts = counts
        self._like = like
        self._meter = meter
        self._left = list(widths)[::-1]
        self._given: dict[Part, Tensor] = {}
        self._begun: dict[int, tuple[Pending, Tensor]] = {}
        """Those that nobody has taken yet."""

    def give(self, layer: int, part: Part, rows: Tensor) -> None:
        """Give this rank's rows of a part; with the layer's last part its gather begins.

        Shapes: rows: [O, width]. Raises: InvariantError if it is not this layer's turn.
        """
        if not self._left or self._left[-1] != layer:
            raise InvariantError(f"rows of layer {layer} were given before those of layers {self._left[::-1]}")
        self._given[part] = rows
        widths = self._widths[layer]
        if len(self._given) == len(widths):
            self._begin(torch.cat([self._given[each] for each in widths], dim=1), None)
            self._given = {}

    def take(self, layer: int) -> dict[Part, Tensor]:
        """Wait for a layer's rows of all ranks, rank 0's first, and give them once; nothing if they were given.

        Shapes: returns [T, width] for each part. Raises: RankError.
        """
        begun = self._begun.pop(layer, None)
        if begun is None:
            return {}
        pending, rows = begun
        with self._meter.span(Happening.WAIT, COMPUTING, layer, Lane.ROWS.value):
            pending.wait()
        widths = self._widths[layer]
        return dict(zip(widths, rows.split(list(widths.values()), dim=1), strict=True))

    def require_done(self) -> None:
        """Assert that every layer's rows were given and taken."""
        if self._left or self._begun:
            raise InvariantError(f"rows of layers {self._left} were not given, of {list(self._begun)} not taken")

    def fail_rest(self, error: RankError) -> None:
        """Begin what is left with an error in place of rows."""
        self._given = {}
        while self._left:
            self._begin(self._like, error)

    def wait_all(self) -> None:
        """Wait for whatever nobody has taken, however it ends."""
        for pending, _ in self._begun.values():
            failure_of(pending)
        self._begun = {}

    def _begin(self, rows: Tensor, error: RankError | None) -> None:
        layer = self._left.pop()
        into = self._like.new_empty(sum(self._counts), sum(self._widths[layer].values()))
        pending = self._communicator.gather(Lane.ROWS, rows, into, self._counts, error, Cargo(layer, ROWS))
        self._begun[layer] = (pending, into)
