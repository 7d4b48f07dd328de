"""Faults for the lab: delays and failures of copies, and the tiers with one guard taken out at a time.

None of this is reachable from an option of the product; engines are built with it by whoever experiments.
"""

import random
import threading
import time
from collections.abc import Sequence

from lineclear.base.ids import BlockId
from lineclear.engine.copy_stream import Transfer
from lineclear.engine.readiness import LoadReadiness, WaitCounts
from lineclear.engine.tier_copies import PartSteps
from lineclear.kv.copies import Offload
from lineclear.kv.pool import Holder
from lineclear.kv.tiers import Tiers
from lineclear.model.batch import Part


class Jitter:
    """A step that takes a random time, and fails now and then.

    Args:
        seed: of the delays; threads take turns at it, so a run is random anyway.
        longest_seconds: of one delay; a third of the copies has none.
        fail_share: of the steps that raise.
    """

    def __init__(self, seed: int, longest_seconds: float, fail_share: float = 0.0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._lock = threading.Lock()
        self._longest_seconds = longest_seconds
        self._fail_share = fail_share

    def __call__(self) -> None:
        """Wait, then perhaps fail."""
        with self._lock:
            delay = self._random.choice((0.0, 1.0, 1.0)) * self._random.random() * self._longest_seconds
            fails = self._random.random() < self._fail_share
        time.sleep(delay)
        if fails:
            raise OSError("the lab lets a copy fail")


class WithoutIndexWait(LoadReadiness):
    """The historical fault: the indexer reads its keys while they are being loaded."""

    def wait(self, layer: int, part: Part) -> None:
        """Wait for latents alone."""
        if part != "index":
            super().wait(layer, part)


class WithoutLatentWait(LoadReadiness):
    """Attention reads latents while they are being loaded."""

    def wait(self, layer: int, part: Part) -> None:
        """Wait for index keys alone."""
        if part != "latent":
            super().wait(layer, part)


class WithoutDraftWait(LoadReadiness):
    """The draft layer reads its cache while that is being loaded."""

    def __init__(self, transfers: Sequence[Transfer], step_idxs: PartSteps, counts: WaitCounts) -> None:
        super().__init__(transfers, step_idxs, counts)
        self._draft_layer = max(layer for layer, _ in step_idxs)

    def wait(self, layer: int, part: Part) -> None:
        """Wait for the target's layers alone."""
        if layer != self._draft_layer:
            super().wait(layer, part)


class WithoutOffloadHold(Tiers):
    """Nobody holds a block that is being offloaded: whoever gets it next overwrites what is yet to be copied."""

    def device_readers(self) -> dict[Holder, tuple[BlockId, ...]]:
        """None."""
        return {}

    def _hold_source(self, offload: Offload) -> None:
        pass

    def _release_source(self, offload: Offload) -> None:
        pass
