"""How many retries a fleet is given: a share of its requests, so that a bad fleet is not made worse by retries.

Invariant: retries taken <= share * requests + burst, at any time.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetStatistics:
    """Totals since start, and the retries that may be taken now."""

    num_requests: int
    num_taken: int
    num_refused: int
    num_left: int


class RetryBudget:
    """A token bucket that requests fill and retries empty.

    Args:
        share: retries for each request, 0 to 1.
        burst: retries that may be saved up, and that there are at the start.
    """

    def __init__(self, share: float, burst: int) -> None:
        self._share = share
        self._burst = burst
        self._level = float(burst)
        self._num_requests = 0
        self._num_taken = 0
        self._num_refused = 0

    def add_request(self) -> None:
        """A request was accepted."""
        self._num_requests += 1
        self._level = min(float(self._burst), self._level + self._share)

    def try_take(self) -> bool:
        """Take one retry; returns whether there was one."""
        if self._level < 1.0:
            self._num_refused += 1
            return False
        self._level -= 1.0
        self._num_taken += 1
        return True

    def statistics(self) -> BudgetStatistics:
        """The counts."""
        return BudgetStatistics(self._num_requests, self._num_taken, self._num_refused, int(self._level))
