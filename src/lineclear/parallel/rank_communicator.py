"""Transfers between all ranks, made of messages between two, in one thread a lane."""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lineclear.base.errors import RankError, RankLostError
from lineclear.parallel.communicator import Cargo, Fill, Lane, Pending
from lineclear.parallel.lane_threads import Job, LaneThread
from lineclear.parallel.meter import Happening, Span, SpanSink
from lineclear.parallel.wire import Sent, Wire


def _at_once(_lane: Lane) -> None:
    """No delay."""


def _unseen(_span: Span) -> None:
    """Nobody counts."""


class RankCommunicator:
    """One rank's end of the `Communicator`.

    Args:
        wire: its messages. Owns: closes it.
        device: where payloads live.
        before_transfer: called in the lane's thread before each transfer; tests delay and stop ranks with it.
        on_span: hears of each transfer that has brought its payload, in the lane's thread.
    """

    def __init__(
        self,
        wire: Wire,
        device: torch.device,
        before_transfer: Callable[[Lane], None] = _at_once,
        on_span: SpanSink = _unseen,
    ) -> None:
        self._wire = wire
        self._on_span = on_span
        self._before_transfer = before_transfer
        self._lost: RankLostError | None = None
        self._threads = {lane: LaneThread(f"cp{wire.rank}-{lane.value}", device) for lane in Lane}
        self._peers = [rank for rank in range(wire.size) if rank != wire.rank]

    @property
    def rank(self) -> int:
        """This rank."""
        return self._wire.rank

    @property
    def size(self) -> int:
        """Ranks of the instance."""
        return self._wire.size

    def broadcast(self, lane: Lane, owner: int, buffer: Tensor, fill: Fill, cargo: Cargo | None = None) -> Pending:
        """Begin to bring the owner's buffer into everybody's."""
        if owner == self.rank:
            return self._begin(lane, lambda: self._send_filled(lane, buffer, fill, cargo), buffer)
        return self._begin(lane, lambda: self._receive(lane, owner, buffer, cargo), None)

    def gather(
        self,
        lane: Lane,
        rows: Tensor,
        into: Tensor,
        counts: Sequence[int],
        error: RankError | None = None,
        cargo: Cargo | None = None,
    ) -> Pending:
        """Begin to bring everybody's rows to everybody."""
        places = into.split(list(counts))

        def exchange() -> None:
            started = time.perf_counter_ns()
            self._exchange(lane, rows.contiguous(), places, error)
            self._note(Happening.GATHER, lane, cargo, started, rows)

        return self._begin(lane, exchange, into)

    def close(self) -> None:
        """End the wires, and then the threads, which wait for them no more."""
        self._wire.close()
        for thread in self._threads.values():
            thread.close()

    def _begin(self, lane: Lane, transfer: Job, outgoing: Tensor | None) -> Pending:
        """`outgoing`: what stands for a payload in the messages of a rank that has none to send."""

        def run() -> None:
            self._before_transfer(lane)
            if self._lost is not None:
                if outgoing is not None:
                    self._tell(lane, self._lost, outgoing)
                raise self._lost
            try:
                transfer()
            except RankLostError as error:
                self._lost = error
                raise
            except RankError:
                raise
            except Exception as cause:
                # Who knows how much of it the others have: the lane is out of step, and nobody may go on with it.
                self._lost = RankLostError(self.rank, f"{type(cause).__name__}: {cause}")
                raise self._lost from cause

        return self._threads[lane].submit(run)

    def _tell(self, lane: Lane, lost: RankLostError, payload: Tensor) -> None:
        """Give others the name of the rank that is gone, rather than let them take this one for it."""
        for peer in self._peers:
            if peer != lost.cp_rank:
                try:
                    self._wire.send(lane, peer, lost, payload)
                except RankLostError:
                    continue  # it will find out by itself

    def _receive(self, lane: Lane, owner: int, buffer: Tensor, cargo: Cargo | None) -> None:
        started = time.perf_counter_ns()
        self._wire.receive(lane, owner, buffer)
        self._note(Happening.RECEIVE, lane, cargo, started, buffer)

    def _send_filled(self, lane: Lane, buffer: Tensor, fill: Fill, cargo: Cargo | None) -> None:
        error: RankError | None = None
        try:
            fill()
        except RankError as cause:
            error = cause
        except Exception as cause:  # noqa: BLE001 - whatever it is, the others must hear of it
            error = RankError(self.rank, f"{type(cause).__name__}: {cause}")
        started = time.perf_counter_ns()
        _finish([self._wire.send(lane, peer, error, buffer) for peer in self._peers])
        if error is not None:
            raise error
        self._note(Happening.BROADCAST, lane, cargo, started, buffer)

    def _exchange(self, lane: Lane, rows: Tensor, places: Sequence[Tensor], error: RankError | None) -> None:
        sent = [self._wire.send(lane, peer, error, rows) for peer in self._peers]
        failures = [error] if error is not None else []
        for peer in self._peers:
            try:
                self._wire.receive(lane, peer, places[peer])
            except RankLostError:
                raise
            except RankError as failure:
                failures.append(failure)
        _finish(sent)
        if failures:
            raise min(failures, key=lambda each: (each.cp_rank, each.reason))
        places[self.rank].copy_(rows)

    def _note(self, happening: Happening, lane: Lane, cargo: Cargo | None, started_ns: int, payload: Tensor) -> None:
        layer, part = (None, None) if cargo is None else cargo
        self._on_span(Span(happening, lane.value, layer, part, started_ns, time.perf_counter_ns(), payload.nbytes))


def _finish(sent: Sequence[Sent]) -> None:
    for finish in sent:
        finish()
