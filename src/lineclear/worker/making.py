"""What a worker is made of where the lab may put in other parts: no option of the product reaches these."""

from collections.abc import Callable
from dataclasses import dataclass

from lineclear.base.ids import WorkerId
from lineclear.config.components import HandoffConfig
from lineclear.engine.build_tiers import PRODUCT, TierMaking
from lineclear.engine.passes import LocalPassMaking, PassMaking
from lineclear.transport.movers.kinds import MoverKind
from lineclear.transport.movers.mover import Mover
from lineclear.worker.decode_desk import DecodeDesk


@dataclass(frozen=True, slots=True)
class WorkerMaking:
    """The parts of a worker that is alone in its instance; None: the product's."""

    open_mover: Callable[[MoverKind], Mover] | None = None
    make_decode_desk: Callable[[WorkerId, int, HandoffConfig], DecodeDesk] | None = None
    tiers: TierMaking = PRODUCT
    passes: PassMaking = LocalPassMaking()  # noqa: RUF009 - frozen


AS_SHIPPED = WorkerMaking()
