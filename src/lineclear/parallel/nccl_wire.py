"""Wires between processes with a GPU each: statuses over gloo, payloads over NCCL, both in the lane's order.

Not run by us yet: no machine with two GPUs was at hand. The contract suite has the case and skips it by name.
"""

from typing import cast

import torch
from torch import Tensor
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage] - documented as torch.distributed's
    Store,  # pyright: ignore[reportPrivateImportUsage]
    Work,
)

from lineclear.parallel.communicator import Lane
from lineclear.parallel.gloo_wire import GlooWire, Group


class NcclWire(GlooWire):
    """One rank's ends; payloads live on this rank's device.

    Order: a status is awaited in the thread, so a payload is posted on both sides or on none; the lane's stream waits
    for the payload and the thread does not.

    Args:
        store, rank, size, deadline_seconds: as `GlooWire`.
    """

    def __init__(self, store: Store, rank: int, size: int, deadline_seconds: float) -> None:
        from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415 - torch without CUDA has none

        super().__init__(PrefixStore("status", store), rank, size, deadline_seconds)
        options = ProcessGroupNCCL.Options()
        self._process_groups = {
            lane: ProcessGroupNCCL(PrefixStore(f"payload-{lane.value}", store), rank, size, options) for lane in Lane
        }
        self._payload_groups = {lane: cast("Group", group) for lane, group in self._process_groups.items()}

    def send_payload(self, lane: Lane, to_rank: int, payload: Tensor) -> Work:
        """Enqueue a payload."""
        return self._payload_groups[lane].send([payload.view(-1).view(torch.uint8)], to_rank, 0)

    def receive_payload(self, lane: Lane, from_rank: int, into: Tensor) -> Work:
        """Enqueue a buffer for a payload."""
        return self._payload_groups[lane].recv([into.view(-1).view(torch.uint8)], from_rank, 0)

    def close(self) -> None:
        """Abort what is under way, and close all connections."""
        for group in self._process_groups.values():
            group.abort()
        self._payload_groups.clear()
        self._process_groups.clear()
        super().close()
