"""When a layer's part of the KV store may be read."""

from typing import Protocol

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
