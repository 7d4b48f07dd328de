"""`lineclear worker` with a mover that takes its time, and on demand without the rule that blocks wait for a proof.

python -m tests.e2e.lab_worker [--unsafe] worker --join ...
"""

import os
import sys

from lineclear.cli.main import main
from lineclear.schedule.holdings import Holdings
from lineclear.transport.movers.delayed import DelayedMover, Delays
from lineclear.transport.movers.kinds import MoverKind, open_mover
from lineclear.transport.movers.mover import Mover
from lineclear.worker import handoffs
from tests.property.hasty_desk import HastyDesk, end_remote_write_once

DELAYS = Delays(max_run_seconds=0.001, slow_share=0.25, max_slow_seconds=1.0, max_completion_seconds=0.05)


def _delayed(kind: MoverKind) -> Mover:
    return DelayedMover(open_mover(kind), DELAYS, seed=os.getpid())


if __name__ == "__main__":
    handoffs.open_mover = _delayed
    arguments = sys.argv[1:]
    if arguments[:1] == ["--unsafe"]:
        Holdings.end_remote_write = end_remote_write_once
        handoffs.DecodeDesk = HastyDesk
        arguments = arguments[1:]
    sys.exit(main(arguments))
