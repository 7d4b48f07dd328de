"""Wires between processes over TCP: `torch.distributed` with gloo, one process group a lane.

Groups are objects of their own and not the process's default group, so that a process may have several communicators,
one after the other. gloo takes the interface from the environment: `GLOO_SOCKET_IFNAME`.

A message that was not awaited in time closes its pair of ranks for good (gloo); a peer's end closes it at once.
"""

import re
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.distributed import (
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage] - documented as torch.distributed's
    ProcessGroupGloo,
    Store,  # pyright: ignore[reportPrivateImportUsage]
    Work,
)

from lineclear.base.errors import RankError, RankLostError
from lineclear.parallel.communicator import Lane
from lineclear.parallel.status import STATUS_BYTES, decode_status, encode_status
from lineclear.parallel.wire import Sent

_STATUS_TAG, _PAYLOAD_TAG = 0, 1


class Group(Protocol):
    """What both backends have, and torch's stubs do not say."""

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> Work:
        """Post a tensor."""
        ...

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Work:
        """Post a buffer."""
        ...


class GlooWire:
    """One rank's ends.

    Args:
        store: where the ranks find each other, e.g. a TCPStore; one communicator's alone.
        rank: of this process.
        size: ranks of the instance.
        deadline_seconds: how long a rank is waited for, at the start and in every transfer.
        address: of this machine, by which the others reach it; empty: as gloo chooses.

    Raises: RankLostError if not all ranks have come within the deadline.
    """

    def __init__(self, store: Store, rank: int, size: int, deadline_seconds: float, address: str = "") -> None:
        self._rank = rank
        self._size = size
        self._deadline = timedelta(seconds=deadline_seconds)
        options = _options(address, self._deadline)
        try:
            self._groups = {
                lane: cast("Group", ProcessGroupGloo(PrefixStore(lane.value, store), rank, size, options))
                for lane in Lane
            }
        except RuntimeError as error:
            raise RankLostError(rank, f"has not found all {size} ranks: {_first_line(error)}") from error

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks of the instance."""
        return self._size

    def send(self, lane: Lane, to_rank: int, error: RankError | None, payload: Tensor) -> Sent:
        """Post the status and the payload."""
        status = torch.frombuffer(bytearray(encode_status(error)), dtype=torch.uint8)
        group = self._group(lane)
        try:
            posted = [group.send([status], to_rank, _STATUS_TAG)]
            if error is None and payload.numel():
                posted.append(self.send_payload(lane, to_rank, payload))
        except RuntimeError as cause:
            raise RankLostError(to_rank, _first_line(cause)) from cause

        def finish() -> None:
            for work in posted:
                self._wait(work, to_rank)

        return finish

    def receive(self, lane: Lane, from_rank: int, into: Tensor) -> None:
        """Wait for the status, and then for the payload."""
        status = torch.empty(STATUS_BYTES, dtype=torch.uint8)
        try:
            self._wait(self._group(lane).recv([status], from_rank, _STATUS_TAG), from_rank)
            error = decode_status(status.numpy().tobytes())
            if error is not None:
                raise error
            if into.numel():
                self._wait(self.receive_payload(lane, from_rank, into), from_rank)
        except RuntimeError as cause:
            raise RankLostError(from_rank, _first_line(cause)) from cause

    def send_payload(self, lane: Lane, to_rank: int, payload: Tensor) -> Work:
        """Post a payload."""
        return self._group(lane).send([_as_bytes(payload)], to_rank, _PAYLOAD_TAG)

    def receive_payload(self, lane: Lane, from_rank: int, into: Tensor) -> Work:
        """Post a buffer for a payload."""
        return self._group(lane).recv([_as_bytes(into)], from_rank, _PAYLOAD_TAG)

    def close(self) -> None:
        """Close all connections."""
        self._groups.clear()

    def _group(self, lane: Lane) -> Group:
        group = self._groups.get(lane)
        if group is None:
            raise RankLostError(self._rank, "its wires are closed")
        return group

    def _wait(self, work: Work, peer: int) -> None:
        try:
            work.wait(self._deadline)
        except RuntimeError as cause:
            raise RankLostError(peer, _first_line(cause)) from cause


def _options(address: str, deadline: timedelta) -> Any:  # noqa: ANN401 - torch's stubs lack the type
    options_type = vars(ProcessGroupGloo)["_Options"]  # torch has no other name for it, and its stubs none
    options = options_type()
    options._timeout = deadline  # noqa: SLF001
    device = ProcessGroupGloo.create_device(hostname=address) if address else ProcessGroupGloo.create_default_device()
    options._devices = [device]  # noqa: SLF001
    return options


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _first_line(error: Exception) -> str:
    """What gloo says, without the place in its sources and its advice."""
    line = str(error).partition("\n")[0]
    return re.sub(r"^\[\S+:\d+\] ", "", line).partition(". This is typically")[0]
