"""`lineclear worker` with a mover that takes its time, and on demand with faults or without the rule.

    python -m tests.e2e.lab_worker [--unsafe] [--faults FOLDER] worker --worker-id NAME --join ...

`--unsafe` takes out the rule that blocks wait for a proof. In the folder that `--faults` names a test arms faults
(`tests.e2e.faults`).
"""

import os
import socket
import sys
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lineclear.base.ids import SequenceId
from lineclear.cli.main import main
from lineclear.protocol.handoff import receiver as rx
from lineclear.protocol.handoff import sender as tx
from lineclear.protocol.handoff.messages import Abort, LineClear, PrefillOrder, WritesDone
from lineclear.protocol.handoff.names import Epoch
from lineclear.schedule.holdings import Holdings
from lineclear.schedule.plan import SequenceUpdate
from lineclear.transport.movers.delayed import DelayedMover, Delays
from lineclear.transport.movers.kinds import MoverKind, open_mover
from lineclear.transport.movers.mover import Memory, Mover, Span, Writer
from lineclear.transport.peer_links import PeerEvent, PeerLinks, PeerSaid
from lineclear.worker import handoffs
from lineclear.worker.decode_desk import DecodeDesk
from lineclear.worker.prefill_desk import PrefillDesk
from tests.e2e.faults import Faults, Phase
from tests.property.hasty_desk import HastyDesk, end_remote_write_once

DELAYS = Delays(max_run_seconds=0.001, slow_share=0.25, max_slow_seconds=1.0, max_completion_seconds=0.05)
DELAYS_BESIDE_FAULTS = Delays(max_run_seconds=0.001, max_completion_seconds=0.02)
"""The faults make the harm here."""

ANSWERING_OUTPUTS = 3


class PhasedPrefillDesk(PrefillDesk):
    """A prefill desk that says where its handoffs are."""

    def __init__(self, faults: Faults, posted: deque[Epoch], *parts: Any) -> None:
        super().__init__(*parts)
        self._faults = faults
        self._posted = posted
        """Of each write that the mover has not begun."""
        faults.connections = lambda: _connections(self._links)

    def _on_link(self, event: PeerEvent) -> None:
        match event:
            case PeerSaid(_, PrefillOrder(epoch)) if self._sender.is_newer(epoch):
                self._faults.reach(Phase.ORDER_ARRIVED, handoff_name(epoch))
            case PeerSaid(_, Abort(epoch)) if self._sender.find(epoch) is not None:
                self._faults.reach(Phase.ABORT_ARRIVED, handoff_name(epoch))
            case _:
                pass
        super()._on_link(event)

    def _perform(self, effect: tx.SenderEffect) -> None:
        match effect:
            case tx.Send(WritesDone(epoch)):
                self._faults.reach(Phase.WRITTEN_UNTOLD, handoff_name(epoch))
            case tx.Send(LineClear(epoch)) if epoch in self._jobs:
                self._faults.reach(Phase.CLEAR_UNTOLD, handoff_name(epoch))
            case tx.PostWrite(epoch):
                self._posted.append(epoch)
            case _:
                pass
        super()._perform(effect)


class PhasedDecodeDesk(DecodeDesk):
    """A decode desk that says where its handoffs are."""

    def __init__(self, faults: Faults, *parts: Any) -> None:
        super().__init__(*parts)
        self._faults = faults
        self._num_outputs = Counter[SequenceId]()
        """Of sequences with tokens that have not ended."""
        faults.connections = lambda: _connections(self._started.links)

    def on_updates(self, updates: Iterable[SequenceUpdate]) -> None:
        told = list(updates)
        super().on_updates(told)
        for update in told:
            sequence_id = update.sequence.sequence_id
            if update.finish_reason is not None:
                del self._num_outputs[sequence_id]
            elif update.token_ids:
                self._num_outputs[sequence_id] += 1
                if self._num_outputs[sequence_id] == ANSWERING_OUTPUTS:
                    self._faults.reach(Phase.ANSWERING, f"{self._worker_id}/{self._life}/sequence {sequence_id}")

    def _perform(self, attempt: Any, effect: rx.ReceiverEffect) -> None:
        super()._perform(attempt, effect)
        match effect:
            case rx.Send(PrefillOrder(epoch)):
                self._faults.reach(Phase.ORDER_SENT, handoff_name(epoch))
            case rx.Send(Abort(epoch)):
                self._faults.reach(Phase.ABORT_SENT, handoff_name(epoch))
            case rx.Ready(epoch):
                self._faults.reach(Phase.READY_UNUSED, handoff_name(epoch))
            case _:
                pass


class HastyPhasedDesk(PhasedDecodeDesk, HastyDesk):
    """The same without the rule."""


class PhasedMover:
    """Says when the second run of a write is to be posted, which `DelayedMover` does after the first is done."""

    def __init__(self, mover: Mover, faults: Faults, posted: deque[Epoch]) -> None:
        self._mover = mover
        self._faults = faults
        self._posted = posted

    def open_memory(self, num_bytes: int) -> Memory:
        """Make a memory of the mover inside."""
        return self._mover.open_memory(num_bytes)

    def open_writer(self, memory: Memory) -> "PhasedWriter":
        """Make a writer that says where it is."""
        return PhasedWriter(self._mover.open_writer(memory), self._faults, self._posted)


class PhasedWriter:
    """A writer of single runs; everything but `post` is the writer's inside."""

    def __init__(self, inside: Writer, faults: Faults, posted: deque[Epoch]) -> None:
        self._inside = inside
        self._faults = faults
        self._posted = posted
        self._handoff = ""
        self._num_runs = 0
        self.identity = inside.identity
        self.poll = inside.poll
        self.fileno = inside.fileno
        self.forget = inside.forget
        self.close = inside.close

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        """Begin one run, or a whole write by its empty edges."""
        if not any(span.num_bytes for span in spans):
            self._handoff, self._num_runs = handoff_name(self._posted.popleft()), 0
        else:
            self._num_runs += 1
            if self._num_runs == 2:
                self._faults.reach(Phase.PART_LANDED, self._handoff)
        self._inside.post(ticket, memory_key, spans)


def handoff_name(epoch: Epoch) -> str:
    """An attempt in one word."""
    return f"{epoch.worker_id}/{epoch.life}/{epoch.number}"


def _connections(links: PeerLinks) -> Iterable[socket.socket]:
    return [link.connection for link in list(links._links.values())]


def _delayed(kind: MoverKind) -> Mover:
    return DelayedMover(open_mover(kind), DELAYS, seed=os.getpid())


def _install_faults(folder: Path, worker_id: str, *, is_safe: bool) -> None:
    faults, posted = Faults(folder, worker_id), deque[Epoch]()

    def delayed(kind: MoverKind) -> Mover:
        return DelayedMover(PhasedMover(open_mover(kind), faults, posted), DELAYS_BESIDE_FAULTS, seed=os.getpid())

    handoffs.open_mover = delayed
    handoffs.PrefillDesk = partial(PhasedPrefillDesk, faults, posted)
    handoffs.DecodeDesk = partial(PhasedDecodeDesk if is_safe else HastyPhasedDesk, faults)


if __name__ == "__main__":
    handoffs.open_mover = _delayed
    arguments = sys.argv[1:]
    is_safe = arguments[:1] != ["--unsafe"]
    arguments = arguments if is_safe else arguments[1:]
    if not is_safe:
        Holdings.end_remote_write = end_remote_write_once
        handoffs.DecodeDesk = HastyDesk
    if arguments[:1] == ["--faults"]:
        _install_faults(Path(arguments[1]), arguments[arguments.index("--worker-id") + 1], is_safe=is_safe)
        arguments = arguments[2:]
    sys.exit(main(arguments))
