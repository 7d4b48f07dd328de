"""`lineclear worker` with parts that the product does not have.

    python -m bench.handoff.lab_worker [OPTION ...] worker --join ...

| option            | the worker                                                                             |
|-------------------|----------------------------------------------------------------------------------------|
| `--observe FILE`  | notes when what happens (`observer`)                                                   |
| `--desk-cpu FILE` | counts what its desk takes (`desk_cpu`)                                                |
| `--unsafe`        | takes news for proof: blocks are free as soon as an attempt has failed                 |
| `--slow`          | has a mover that pauses before every run and every completion                          |
| `--null`          | computes nothing, which takes 5 ms a step: every token of its answers is the same      |
| `--no-copy`       | copies nothing, and says that it has                                                   |
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.handoff.desk_cpu import count_desk_cpu
from bench.handoff.observer import observe
from lineclear.base.ids import SequenceId
from lineclear.cli.main import main
from lineclear.engine.readiness import Readiness
from lineclear.engine.runner import Runner
from lineclear.schedule.holdings import Holdings
from lineclear.schedule.plan import ChunkResult, Plan
from lineclear.schedule.sequence import Sequence
from lineclear.transport.movers import shm_writer
from lineclear.transport.movers.delayed import DelayedMover, Delays
from lineclear.transport.movers.kinds import MoverKind, open_mover
from lineclear.transport.movers.mover import Mover
from lineclear.worker import handoffs
from tests.property.hasty_desk import HastyDesk, end_remote_write_once

DELAYS = Delays(max_run_seconds=0.004, max_completion_seconds=0.05)
"""Those of `tests/e2e/lab_worker.py`."""

NULL_TOKEN_ID = 300
NULL_STEP_SECONDS = 0.005
"""Without the GIL, as most of a real step is."""


def _slow(kind: MoverKind) -> Mover:
    return DelayedMover(open_mover(kind), DELAYS, seed=os.getpid())


def _compute_nothing(
    _runner: Runner, plan: Plan, _sequences: Mapping[SequenceId, Sequence], _readiness: Readiness
) -> dict[SequenceId, ChunkResult]:
    time.sleep(NULL_STEP_SECONDS)
    result = ChunkResult(token_ids=(NULL_TOKEN_ID,))
    return {chunk.sequence_id: result for chunk in plan.chunks if chunk.samples}


def _copy_nothing(*_: object) -> bool:
    return True


def _run(arguments: list[str]) -> int:
    while arguments and arguments[0].startswith("--"):
        match arguments.pop(0):
            case "--observe":
                observe(Path(arguments.pop(0)))
            case "--desk-cpu":
                count_desk_cpu(Path(arguments.pop(0)))
            case "--unsafe":
                Holdings.end_remote_write = end_remote_write_once
                handoffs.DecodeDesk = HastyDesk
            case "--slow":
                handoffs.open_mover = _slow
            case "--null":
                Runner.run = _compute_nothing
            case "--no-copy":
                shm_writer.copy_runs = _copy_nothing
            case option:
                raise SystemExit(f"no lab option {option}")
    return main(arguments)


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
