"""Every fault that a lab worker can be built with, by its name.

| fault                       | part                     | fires when                                                |
|-----------------------------|--------------------------|-----------------------------------------------------------|
| reuse_without_line_clear    | the decode worker's desk | blocks are freed whose writer is not proven to be done    |
| late_writes                 | the mover                | a write stands still for up to a second                   |
| slow_loads                  | copies between tiers     | a step of a copy waits                                    |
| index_read_without_wait     | readiness of passes      | the indexer reads a part that is not there yet            |
| latent_read_without_wait    | readiness of passes      | attention reads a part that is not there yet              |
| bit_flips                   | passes                   | one bit of a block that a pass reads has changed          |
"""

from collections.abc import Collection
from functools import partial
from typing import Final

from lineclear.base.errors import ConfigError
from lineclear.engine.build_tiers import PRODUCT, TierMaking
from lineclear.engine.passes import LocalPassMaking
from lineclear.engine.readiness import LoadReadiness
from lineclear.engine.tier_copies import MakeReadiness
from lineclear.testing.faults.firings import Firings
from lineclear.testing.faults.parts import FlippingPassMaking, HastyDecodeDesk, SlowStep, UnwaitedPart
from lineclear.transport.movers.delayed import DelayedMover, Delays
from lineclear.transport.movers.kinds import MoverKind, open_mover
from lineclear.transport.movers.mover import Mover
from lineclear.worker.making import WorkerMaking

REUSE: Final = "reuse_without_line_clear"
LATE_WRITES: Final = "late_writes"
SLOW_LOADS: Final = "slow_loads"
INDEX_READ: Final = "index_read_without_wait"
LATENT_READ: Final = "latent_read_without_wait"
BIT_FLIPS: Final = "bit_flips"

FAULTS: Final = (REUSE, LATE_WRITES, SLOW_LOADS, INDEX_READ, LATENT_READ, BIT_FLIPS)

DELAYS: Final = Delays(max_run_seconds=0.001, slow_share=0.25, max_slow_seconds=1.0, max_completion_seconds=0.05)
LONGEST_LOAD_STEP_SECONDS: Final = 0.05


def making_of(faults: Collection[str], firings: Firings, seed: int) -> WorkerMaking:
    """Put faults into the parts of a worker.

    Raises: ConfigError for a fault that is not in the catalogue, or two that take the same part.
    """
    for fault in faults:
        if fault not in FAULTS:
            raise ConfigError("fault", fault, f"one of {', '.join(FAULTS)}")
    if {INDEX_READ, LATENT_READ} <= set(faults):
        raise ConfigError("fault", LATENT_READ, f"not together with {INDEX_READ}")
    return WorkerMaking(
        open_mover=_slow_mover(firings, seed) if LATE_WRITES in faults else None,
        make_decode_desk=partial(HastyDecodeDesk, firings.counter(REUSE)) if REUSE in faults else None,
        tiers=_tiers(faults, firings, seed),
        passes=FlippingPassMaking(seed, firings.counter(BIT_FLIPS)) if BIT_FLIPS in faults else LocalPassMaking(),
    )


class _SlowMover:
    """Opens the product's mover and slows it down."""

    def __init__(self, firings: Firings, seed: int) -> None:
        self._firings = firings
        self._seed = seed

    def __call__(self, kind: MoverKind) -> Mover:
        return DelayedMover(open_mover(kind), DELAYS, self._seed, self._firings.counter(LATE_WRITES))


def _slow_mover(firings: Firings, seed: int) -> _SlowMover:
    return _SlowMover(firings, seed)


def _tiers(faults: Collection[str], firings: Firings, seed: int) -> TierMaking:
    readiness: MakeReadiness = LoadReadiness
    if INDEX_READ in faults:
        readiness = partial(UnwaitedPart, "index", firings.counter(INDEX_READ))
    if LATENT_READ in faults:
        readiness = partial(UnwaitedPart, "latent", firings.counter(LATENT_READ))
    if SLOW_LOADS in faults:
        return TierMaking(
            before_step=SlowStep(seed, LONGEST_LOAD_STEP_SECONDS, firings.counter(SLOW_LOADS)), make_readiness=readiness
        )
    return PRODUCT if readiness is LoadReadiness else TierMaking(make_readiness=readiness)
