"""Faults for the lab: delays of transfers and fills, loads that end late, and LayerSplit without one guard at a time.

None of this is reachable from an option of the product; ranks are built with it by whoever experiments.
"""

import random
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lineclear.base.ids import BlockId
from lineclear.engine.readiness import AlwaysReady, Readiness
from lineclear.engine.store import KvStore
from lineclear.model.batch import Part
from lineclear.parallel.communicator import Pending
from lineclear.parallel.layersplit import LayerSplitPass
from lineclear.parallel.staging import Staging
from lineclear.schedule.plan import Plan
from lineclear.testing.ranks.group import Around, Sequences

JUNK = 3.0
"""What lies in a block that is not loaded yet: finite, and of the size of real values."""


READER_SECONDS = 0.004
"""Longer than filling a buffer of a small batch takes."""


class RandomDelay:
    """A random pause; the threads of all ranks share it.

    Args:
        seed: of the delays; threads take turns at it, so a run is random anyway.
        longest_seconds: of one delay; a third of them is none.
    """

    def __init__(self, seed: int, longest_seconds: float) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._lock = threading.Lock()
        self._longest_seconds = longest_seconds

    def __call__(self, *_where: object) -> None:
        """Wait, wherever it is."""
        with self._lock:
            delay = self._random.choice((0.0, 1.0, 1.0)) * self._random.random() * self._longest_seconds
        time.sleep(delay)


def late_loads(pause: Callable[[], None]) -> Callable[[Sequence[KvStore]], Around]:
    """Let what every plan reads of earlier passes come from a load that is late: until then the blocks hold junk."""

    def make_around(stores: Sequence[KvStore]) -> Around:
        @contextmanager
        def around(rank: int, plan: Plan, sequences: Sequences, _readiness: Readiness) -> Generator[Readiness]:
            load = _LateLoad(stores[rank], _whole_prefix_blocks(stores[rank], plan, sequences), pause)
            load.start()
            try:
                yield load
            finally:
                load.join()

        return around

    return make_around


class _LateLoad(threading.Thread):
    """Takes blocks out of a store, and brings them back part by part, in reading order."""

    def __init__(self, store: KvStore, block_ids: Sequence[BlockId], pause: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._pause = pause
        blocks = torch.tensor(block_ids, dtype=torch.int64)
        self._slots = (blocks.unsqueeze(1) * store.block_size + torch.arange(store.block_size)).flatten()
        order = sorted(store.parts, key=lambda each: (each[0], each[1] != "index"))
        self._events = {each: threading.Event() for each in order}
        self._content: dict[tuple[int, Part], Tensor] = {}
        for layer, part in order:
            content = store.read(layer, part, AlwaysReady()).index_select(0, self._slots)
            self._content[layer, part] = content
            store.write(layer, part, self._slots, torch.full_like(content, JUNK))

    @torch.inference_mode()
    def run(self) -> None:
        """Bring everything back."""
        for (layer, part), content in self._content.items():
            self._pause()
            self._store.write(layer, part, self._slots, content)
            self._events[layer, part].set()

    def wait(self, layer: int, part: Part) -> None:
        """Wait until the part is back."""
        self._events[layer, part].wait()


def _whole_prefix_blocks(store: KvStore, plan: Plan, sequences: Sequences) -> list[BlockId]:
    """The blocks of a plan's sequences that no chunk of it writes into."""
    size = store.block_size
    spans = [sequences[chunk.sequence_id].block_table.span(0, chunk.start // size) for chunk in plan.chunks]
    return sorted({block_id for span in spans for block_id in span})


class SendsBeforeLoaded(LayerSplitPass):
    """An owner sends what its store holds, loaded or not."""

    def _read_store(self, layer: int, part: Part) -> Tensor:
        return self._parts.store.read(layer, part, AlwaysReady())


class SlowReader(LayerSplitPass):
    """All guards are there; between a part's coming and its being read there is time for whoever may write."""

    def read(self, layer: int, part: Part) -> Tensor:
        """Give it late."""
        buffer = super().read(layer, part)
        time.sleep(READER_SECONDS)
        return buffer


class ReusesEarly(LayerSplitPass):
    """A latent part's staging buffer is filled again before it was read, by a slow reader."""

    def read(self, layer: int, part: Part) -> Tensor:
        """Release what it gives."""
        buffer = super().read(layer, part)
        if part == "latent" and layer < self._draft_layer:
            self._staging.release(layer, part)
            self._staging.advance()
        time.sleep(READER_SECONDS)
        return buffer


class _StagingWithoutIndexWait(Staging):
    """The historical fault, between ranks."""

    def _await(self, part: Part, pending: Pending) -> None:
        if part != "index":
            super()._await(part, pending)


class WithoutIndexWait(LayerSplitPass):
    """The indexer reads its keys while they are on their way."""

    make_staging = _StagingWithoutIndexWait
