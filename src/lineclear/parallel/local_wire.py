"""Wires between ranks that are threads of one process: for tests. Payloads are on the CPU."""

import queue
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from lineclear.base.errors import InvariantError, RankError, RankLostError
from lineclear.parallel.communicator import Lane
from lineclear.parallel.status import decode_status, encode_status


@dataclass(frozen=True, slots=True)
class _Message:
    status: bytes
    payload: Tensor | None


_Box = queue.SimpleQueue[_Message]


class LocalWire:
    """One rank's ends; `local_wires` makes them."""

    def __init__(
        self, rank: int, size: int, boxes: Mapping[tuple[Lane, int, int], _Box], deadline_seconds: float
    ) -> None:
        self._rank = rank
        self._size = size
        self._boxes = boxes
        self._deadline_seconds = deadline_seconds
        self._is_closed = False

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def size(self) -> int:
        """Ranks of the instance."""
        return self._size

    def send(self, lane: Lane, to_rank: int, error: RankError | None, payload: Tensor) -> "_Done":
        """Put a copy into the other's box."""
        message = _Message(encode_status(error), None if error is not None else payload.clone())
        self._boxes[lane, self._rank, to_rank].put(message)
        return _DONE

    def receive(self, lane: Lane, from_rank: int, into: Tensor) -> None:
        """Take from this rank's box."""
        if self._is_closed:
            raise RankLostError(self._rank, "its wires are closed")
        try:
            message = self._boxes[lane, from_rank, self._rank].get(timeout=self._deadline_seconds)
        except queue.Empty:
            raise RankLostError(from_rank, f"not heard of for {self._deadline_seconds} s") from None
        error = decode_status(message.status)
        if error is not None:
            raise error
        if message.payload is None or message.payload.shape != into.shape:
            raise InvariantError(f"lane {lane.value}: rank {from_rank} sent another shape than {tuple(into.shape)}")
        into.copy_(message.payload)

    def close(self) -> None:
        """Tell the others, and wake this rank's own threads."""
        self._is_closed = True
        gone = _Message(encode_status(RankLostError(self._rank, "it has closed its wires")), None)
        for (_, from_rank, to_rank), box in self._boxes.items():
            if self._rank in {from_rank, to_rank}:
                box.put(gone)


class _Done:
    """Sent when it was posted."""

    def __call__(self) -> None:
        pass


_DONE = _Done()


def local_wires(size: int, deadline_seconds: float) -> list[LocalWire]:
    """The wires of `size` ranks; a rank that sends nothing for `deadline_seconds` is lost."""
    ranks = range(size)
    boxes: dict[tuple[Lane, int, int], _Box] = {
        (lane, one, other): queue.SimpleQueue() for lane in Lane for one in ranks for other in ranks
    }
    return [LocalWire(rank, size, boxes, deadline_seconds) for rank in ranks]
