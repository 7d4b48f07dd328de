"""Every accepted request ends exactly once, and the ledger is where that is asserted.

    open ──▶ COMPLETED     the whole answer was handed to the client's connection
         ──▶ FAILED        the client was told an error, or its connection was cut where that was no longer possible
         ──▶ DISCONNECTED  the client left

Invariants:
1. A request that is opened is ended once; `check` after a drain finds none open.
2. opened = open + completed + failed + disconnected.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lineclear.base.errors import InvariantError
from lineclear.base.ids import RequestId


class Outcome(Enum):
    """How a request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    DISCONNECTED = "disconnected"


@dataclass(frozen=True)
class LedgerStatistics:
    """Totals since start, apart from `num_open`."""

    num_open: int
    num_opened: int
    num_ended: dict[Outcome, int]


class Ledger:
    """The account of all accepted requests of this process.

    Args:
        on_empty: called when the last open request has ended.
    """

    def __init__(self, on_empty: Callable[[], None] = lambda: None) -> None:
        self._on_empty = on_empty
        self._open: set[RequestId] = set()
        self._num_opened = 0
        self._num_ended = dict.fromkeys(Outcome, 0)

    @property
    def num_open(self) -> int:
        """Requests without an ending yet."""
        return len(self._open)

    def open(self, request_id: RequestId) -> None:
        """A request is accepted.

        Raises:
            InvariantError: It already was.
        """
        if request_id in self._open:
            raise InvariantError(f"request {request_id} is opened twice")
        self._open.add(request_id)
        self._num_opened += 1

    def end(self, request_id: RequestId, outcome: Outcome) -> None:
        """A request has its ending.

        Raises:
            InvariantError: It has one already, or was never accepted.
        """
        if request_id not in self._open:
            raise InvariantError(f"request {request_id} ends ({outcome.value}) without being open")
        self._open.remove(request_id)
        self._num_ended[outcome] += 1
        if not self._open:
            self._on_empty()

    def statistics(self) -> LedgerStatistics:
        """The counts."""
        return LedgerStatistics(len(self._open), self._num_opened, dict(self._num_ended))

    def check(self) -> None:
        """Assert invariant 2."""
        if self._num_opened != len(self._open) + sum(self._num_ended.values()):
            raise InvariantError(f"the ledger does not add up: {self.statistics()}")
