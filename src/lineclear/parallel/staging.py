"""Staging of one pass: buffers in which parts of layers lie while they are read, and the order in which they come.

    schedule    index 0, latent 0, index 1, latent 1, latent 2, index 3, …      in the order in which a pass reads
                   │ begun, as soon as a buffer of the part is free and all before it have begun
                   ▼
    on its way ── wait ──▶ lent to the pass ── release ──▶ the buffer is free for what comes next

Invariants:
1. A buffer is free only when the layer that it was lent for is released: by whoever reads it, after its last read.
2. Every rank begins the same transfers of a lane in the same order; those that a pass did not come to because it failed
   are begun with the failure (`fail_rest`).
3. Nobody gets a buffer before its content is there (`wait`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

from lineclear.base.errors import InvariantError, RankError
from lineclear.model.batch import Part
from lineclear.parallel.communicator import Pending
from lineclear.parallel.meter import COMPUTING, Happening, Meter
from lineclear.parallel.planning.staging import Depths, aligned
from lineclear.parallel.rows import failure_of


class Item(NamedTuple):
    """A part of a layer that a pass reads, and how many blocks of it are brought."""

    layer: int
    part: Part
    num_blocks: int


Buffers: TypeAlias = Mapping[Part, Sequence[Tensor]]

Bring: TypeAlias = Callable[[Item, Tensor, RankError | None], Pending]
"""Begins to bring an item's blocks into a buffer; with an error, that instead. Shapes: [num_slots, width]."""


class _Lent:
    """An item whose buffer is taken."""

    def __init__(self, buffer: Tensor, pending: Pending | None) -> None:
        self.buffer = buffer
        self.pending = pending
        self.is_there = pending is None


class Staging:
    """The buffers of one pass.

    Args:
        schedule: in reading order.
        buffers: of each part, one or more.
        bring: begins a transfer; called for items with blocks alone.
        meter: hears of waits.
    """

    def __init__(self, schedule: Sequence[Item], buffers: Buffers, bring: Bring, meter: Meter) -> None:
        self._schedule = schedule
        self._bring = bring
        self._meter = meter
        self._next = 0
        self._free = {part: list(of_part)[::-1] for part, of_part in buffers.items()}
        self._any_buffer = {part: of_part[0] for part, of_part in buffers.items()}
        self._lent: dict[tuple[int, Part], _Lent] = {}
        self._failed: list[Pending] = []

    def advance(self) -> None:
        """Begin what there is a free buffer for, in order."""
        while self._next < len(self._schedule):
            item = self._schedule[self._next]
            free = self._free[item.part]
            if not free:
                return
            buffer = free.pop()
            pending = self._bring(item, buffer, None) if item.num_blocks else None
            self._lent[item.layer, item.part] = _Lent(buffer, pending)
            self._next += 1

    def wait(self, layer: int, part: Part) -> Tensor:
        """Wait for an item, and give its buffer until it is released.

        Raises: RankError; InvariantError if its turn has not come: a buffer before it was not released.
        """
        lent = self._require(layer, part)
        if lent.pending is not None and not lent.is_there:
            with self._meter.span(Happening.WAIT, COMPUTING, layer, part):
                self._await(part, lent.pending)
            lent.is_there = True
        return lent.buffer

    def pending_of(self, layer: int, part: Part) -> Pending | None:
        """An item's transfer, if there is one."""
        lent = self._lent.get((layer, part))
        return None if lent is None else lent.pending

    def release(self, layer: int, part: Part) -> None:
        """Nobody reads the item any more: its buffer may be filled again."""
        lent = self._require(layer, part)
        if not lent.is_there:
            raise InvariantError(f"the {part} part of layer {layer} was released before it was there")
        del self._lent[layer, part]
        self._free[part].append(lent.buffer)

    def lent_before(self, layer: int) -> list[tuple[int, Part]]:
        """What is lent of earlier layers."""
        return [each for each in self._lent if each[0] < layer]

    def fail_rest(self, error: RankError) -> None:
        """Begin what is left with an error; a lane's transfers come one after the other, so any buffer will do."""
        for item in self._schedule[self._next :]:
            if item.num_blocks:
                self._failed.append(self._bring(item, self._any_buffer[item.part], error))
        self._next = len(self._schedule)

    def wait_all(self) -> None:
        """Wait until nothing is on its way, however it ends."""
        for lent in self._lent.values():
            if lent.pending is not None:
                failure_of(lent.pending)
        for pending in self._failed:
            failure_of(pending)
        self._failed = []

    def require_begun(self) -> None:
        """Assert that everything was begun."""
        if self._next < len(self._schedule):
            raise InvariantError(f"no buffer became free for {self._schedule[self._next]}")

    def _await(self, part: Part, pending: Pending) -> None:  # noqa: ARG002 - the lab takes one part's wait out
        pending.wait()

    def _require(self, layer: int, part: Part) -> _Lent:
        lent = self._lent.get((layer, part))
        if lent is None:
            raise InvariantError(f"the {part} part of layer {layer} is not in staging")
        return lent


def carve(memory: Tensor, like: Tensor, num_rows: int, widths: Mapping[Part, int], depths: Depths) -> Buffers:
    """Cut staging's memory into a pass's buffers.

    Shapes: memory: bytes; like: of the buffers' type; returns [num_rows, width] tensors.
    """
    buffers: dict[Part, list[Tensor]] = {}
    start = 0
    num_buffers: Mapping[Part, int] = {"latent": depths.latent, "index": depths.index}
    for part, depth in num_buffers.items():
        size = num_rows * widths[part] * like.itemsize
        buffers[part] = []
        for _ in range(depth):
            buffers[part].append(memory[start : start + size].view(like.dtype).view(num_rows, widths[part]))
            start += aligned(size)
    return buffers
