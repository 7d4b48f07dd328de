"""When a layer's part of the KV store may be read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lineclear.engine.copy_stream import Transfer
from lineclear.kv.copies import CopyId
from lineclear.model.batch import Part


class Readiness(Protocol):
    """Knows what a forward pass may read already."""

    def wait(self, layer: int, part: Part) -> None:
        """Return once everything that this pass will read of the layer's part is in place."""
        ...


class AlwaysReady:
    """For batches whose blocks were all written by earlier forward passes of the same stream."""

    def wait(self, layer: int, part: Part) -> None:
        """Return at once: a stream sees its own earlier writes."""


@dataclass(slots=True)
class WaitCounts:
    """How often passes have waited for loads, and how long."""

    num_waits: int = 0
    seconds: float = 0.0

    def count(self, seconds: float) -> None:
        """Count a wait, if it was one."""
        if seconds > 0:
            self.num_waits += 1
            self.seconds += seconds


class LoadReadiness:
    """For batches that read what loads bring: each layer's part is waited for when it is read, and not before.

    Args:
        transfers: the loads, of which step `step_idxs[layer, part]` brings that part.
    """

    def __init__(
        self, transfers: Sequence[Transfer], step_idxs: Mapping[tuple[int, Part], int], counts: WaitCounts
    ) -> None:
        self._transfers = transfers
        self._step_idxs = step_idxs
        self._counts = counts

    def wait(self, layer: int, part: Part) -> None:
        """Wait for every load's copy of the part."""
        step_idx = self._step_idxs[layer, part]
        for transfer in self._transfers:
            self._counts.count(transfer.wait(step_idx))


class WatchedReadiness:
    """Another readiness, and a look whether it has kept its word each time it lets a pass read.

    Args:
        readiness: what the pass waits with.
        transfers, step_idxs: as of `LoadReadiness`.
        on_early: hears of each load whose copy of a part was not visible when the part was read.
    """

    def __init__(
        self,
        readiness: Readiness,
        transfers: Sequence[Transfer],
        step_idxs: Mapping[tuple[int, Part], int],
        on_early: Callable[[CopyId, int, Part], None],
    ) -> None:
        self._readiness = readiness
        self._transfers = transfers
        self._step_idxs = step_idxs
        self._on_early = on_early

    def wait(self, layer: int, part: Part) -> None:
        """Wait, then look."""
        self._readiness.wait(layer, part)
        step_idx = self._step_idxs[layer, part]
        for transfer in self._transfers:
            if not transfer.is_visible(step_idx):
                self._on_early(transfer.copy_id, layer, part)
