"""The KV that a model computes with, and the time that it computes between two looks at it."""

import time
from typing import Final

from torch import Tensor

from lineclear.model.batch import KvCache, Part
from lineclear.parallel.meter import COMPUTING, Happening, Meter, Span


class TimedCache:
    """A phase's KV. What is computed until a layer first writes counts for the layer before it."""

    def __init__(self, cache: KvCache, meter: Meter) -> None:
        self._cache = cache
        self._meter = meter
        self._layer: int | None = None
        self._since_ns = time.perf_counter_ns()
        self.block_size: Final = cache.block_size

    def write(self, layer: int, part: Part, slot_mapping: Tensor, values: Tensor) -> None:
        """Put values."""
        self._pause(layer)
        self._cache.write(layer, part, slot_mapping, values)
        self._resume()

    def read(self, layer: int, part: Part) -> Tensor:
        """Give a part."""
        self._pause(layer)
        tensor = self._cache.read(layer, part)
        self._resume()
        return tensor

    def end(self) -> None:
        """The phase is computed."""
        self._pause(self._layer)

    def _pause(self, layer: int | None) -> None:
        self._meter(Span(Happening.COMPUTE, COMPUTING, self._layer, None, self._since_ns, time.perf_counter_ns()))
        self._layer = layer

    def _resume(self) -> None:
        self._since_ns = time.perf_counter_ns()
