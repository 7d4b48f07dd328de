"""Which workers there are, and what each has to do. Pure: events in, answers out.

    connected ──▶ serving ──drain──▶ draining ──drained──▶ idle for good
        └──────────────── lost ───────────────▶ (removed)

Invariants:
1. A worker never has more sequences than it may: those that run and those that may wait.
2. The sequences of one request go to one worker, so that they share their prompt's blocks.
3. A prefill instance gets none: decode workers order from it.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lineclear.base.errors import InvariantError
from lineclear.protocol.roles import Role
from lineclear.protocol.wire import InvariantsChecked, QuarantineReleased, WorkerHello, WorkerStatistics

LinkIdT = TypeVar("LinkIdT", bound=int)


@dataclass(slots=True)
class Worker:
    """A connected worker; `capacity` counts running and waiting sequences."""

    hello: WorkerHello
    capacity: int
    sequence_ids: set[int] = field(default_factory=set[int])
    is_draining: bool = False
    is_drained: bool = False
    statistics: WorkerStatistics | None = None
    invariants: InvariantsChecked | None = None
    released: QuarantineReleased | None = None

    @property
    def takes_requests(self) -> bool:
        """Whether it may be given sequences at all."""
        return not self.is_draining and self.hello.role is not Role.PREFILL

    @property
    def computes_prompts(self) -> bool:
        """Whether decode workers may order from it."""
        return not self.is_draining and self.hello.role is Role.PREFILL

    @property
    def num_free(self) -> int:
        """Sequences it may still be given."""
        return self.capacity - len(self.sequence_ids) if self.takes_requests else 0


class WorkerTable(Generic[LinkIdT]):
    """All connected workers by link.

    Args:
        max_waiting: sequences that may wait at one worker beside those that run.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._workers: dict[LinkIdT, Worker] = {}

    @property
    def workers(self) -> dict[LinkIdT, Worker]:
        """The connected workers."""
        return self._workers

    @property
    def has_serving(self) -> bool:
        """Whether any worker takes requests."""
        return any(worker.takes_requests for worker in self._workers.values())

    @property
    def most_capacity(self) -> int:
        """The most sequences that one worker takes."""
        return max((worker.capacity for worker in self._workers.values() if worker.takes_requests), default=0)

    def connect(self, link_id: LinkIdT, hello: WorkerHello) -> None:
        """A worker said hello."""
        self._workers[link_id] = Worker(hello, hello.model.max_running + self._max_waiting)

    def lose(self, link_id: LinkIdT) -> set[int]:
        """A worker is gone; returns the sequences it had."""
        worker = self._workers.pop(link_id, None)
        return worker.sequence_ids if worker is not None else set()

    def link_of(self, worker_id: str) -> LinkIdT:
        """The link of a connected worker: one name is one worker."""
        return next(link_id for link_id, worker in self._workers.items() if worker.hello.worker_id == worker_id)

    def assign(self, link_id: LinkIdT, sequence_ids: list[int]) -> None:
        """Give sequences to a chosen worker.

        Raises:
            InvariantError: It has no room for them.
        """
        worker = self._workers[link_id]
        if worker.num_free < len(sequence_ids):
            raise InvariantError(f"worker {worker.hello.worker_id} gets {len(sequence_ids)} of {worker.num_free}")
        worker.sequence_ids.update(sequence_ids)

    def finish(self, link_id: LinkIdT, sequence_id: int) -> bool:
        """A sequence ended at this worker; returns whether it had it."""
        worker = self._workers.get(link_id)
        if worker is None or sequence_id not in worker.sequence_ids:
            return False
        worker.sequence_ids.remove(sequence_id)
        return True
