"""What all ranks decide by: they go on together, or fail together with the same error."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lineclear.base.errors import RankError
from lineclear.parallel.communicator import Communicator, Lane
from lineclear.parallel.meter import COMPUTING, Happening, Meter
from lineclear.parallel.rows import failure_of

OTHER_PLAN = "its plan, or the tokens that it has chosen, are not those of cp_rank 0"


class Accord:
    """One rank's voice.

    Args:
        communicator: all ranks'.
        device: where payloads live.
        meter: hears of waits.
    """

    def __init__(self, communicator: Communicator, device: torch.device, meter: Meter) -> None:
        self._communicator = communicator
        self._device = device
        self._meter = meter

    @property
    def ones(self) -> list[int]:
        """The counts of one row a rank."""
        return [1] * self._communicator.size

    def go_on(self, digest: bytes, error: RankError | None = None) -> None:
        """Return when all ranks have come here, with the same digest and without an error.

        Raises: RankError, the same on all ranks.
        """
        own = torch.frombuffer(bytearray(digest), dtype=torch.uint8).unsqueeze(0).to(self._device)
        (digests,) = self.gather([own], [self.ones], error)
        differs = (digests != digests[0]).any(dim=1).nonzero()
        if len(differs):
            raise RankError(int(differs[0]), OTHER_PLAN)

    def gather(
        self, rows: Sequence[Tensor], counts: Sequence[Sequence[int]], error: RankError | None = None
    ) -> list[Tensor]:
        """Bring some tensors of all ranks to all, rank 0's rows first.

        Shapes: rows: each [count of this rank, width], with an error too.
        Raises: RankError, the same on all ranks, if any rank has an error.
        """
        begun = [
            (self._communicator.gather(Lane.CONTROL, each, into, of_rank, error), into)
            for each, of_rank in zip(rows, counts, strict=True)
            for into in [each.new_empty(sum(of_rank), *each.shape[1:])]
        ]
        with self._meter.span(Happening.WAIT, COMPUTING, None, Lane.CONTROL.value):
            failures = [failure for pending, _ in begun if (failure := failure_of(pending)) is not None]
        if failures:
            raise failures[0]
        return [into for _, into in begun]
