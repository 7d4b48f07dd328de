"""`lineclear worker` with a mover that takes its time, and on demand without the rule that blocks wait for a proof.

python -m tests.e2e.lab_worker [--unsafe] worker --join ...
"""

import os
import sys

from lineclear.cli.main import main
from lineclear.protocol.handoff import receiver as rx
from lineclear.schedule.holdings import Holdings
from lineclear.transport.movers.delayed import DelayedMover, Delays
from lineclear.transport.movers.kinds import MoverKind, open_mover
from lineclear.transport.movers.mover import Mover
from lineclear.worker import handoffs
from lineclear.worker.decode_desk import DecodeDesk

DELAYS = Delays(max_run_seconds=0.004, max_completion_seconds=0.05)


def _delayed(kind: MoverKind) -> Mover:
    return DelayedMover(open_mover(kind), DELAYS, seed=os.getpid())


class HastyDesk(DecodeDesk):
    """Takes news for proof: blocks are free as soon as an attempt has failed."""

    def _perform(self, attempt: object, effect: rx.ReceiverEffect) -> None:
        super()._perform(attempt, effect)
        if isinstance(effect, rx.Failed):
            for peer in attempt.receiver.unproven:
                super()._perform(attempt, rx.ReleaseWriter(effect.epoch, peer))


def _take_the_rule_out() -> None:
    real = Holdings.end_remote_write

    def end_remote_write(self: Holdings, writer: object) -> None:
        if writer in self._remote:
            real(self, writer)

    Holdings.end_remote_write = end_remote_write
    handoffs.DecodeDesk = HastyDesk


if __name__ == "__main__":
    handoffs.open_mover = _delayed
    arguments = sys.argv[1:]
    if arguments[:1] == ["--unsafe"]:
        _take_the_rule_out()
        arguments = arguments[1:]
    sys.exit(main(arguments))
