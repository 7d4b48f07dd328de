"""The account of drafts, by position: kept by a sequence, summed by a worker, sent to the gateway."""

from typing import Self

import msgspec


class DraftCounts(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many drafts were judged and kept, by their position in a verify (0 is the first draft).

    Invariants, checked when one is received:
        1. Both lists have the same length.
        2. accepted <= proposed <= num_verifies at each position.
        3. No list grows with the position: a draft is kept only if those before it were.
    """

    num_verifies: int = 0
    proposed_by_position: list[int] = []
    accepted_by_position: list[int] = []

    def __post_init__(self) -> None:
        accepted, proposed = self.accepted_by_position, self.proposed_by_position
        if len(accepted) != len(proposed):
            raise ValueError("draft counts: both lists must have the same length")
        previous = (self.num_verifies, self.num_verifies)
        for counts in zip(proposed, accepted, strict=True):
            if not 0 <= counts[1] <= counts[0] <= previous[0] or counts[1] > previous[1]:
                raise ValueError("draft counts: accepted must not exceed proposed, nor either its predecessor")
            previous = counts

    def record(self, num_proposed: int, num_accepted: int) -> None:
        """Count one verify: of its `num_proposed` drafts the first `num_accepted` were kept."""
        proposed, accepted = self.proposed_by_position, self.accepted_by_position
        missing = num_proposed - len(proposed)
        if missing > 0:
            proposed.extend([0] * missing)
            accepted.extend([0] * missing)
        self.num_verifies += 1
        for position in range(num_proposed):
            proposed[position] += 1
        for position in range(num_accepted):
            accepted[position] += 1

    def merge(self, other: Self) -> None:
        """Add another account to this one."""
        missing = len(other.proposed_by_position) - len(self.proposed_by_position)
        if missing > 0:
            self.proposed_by_position.extend([0] * missing)
            self.accepted_by_position.extend([0] * missing)
        self.num_verifies += other.num_verifies
        for position, count in enumerate(other.proposed_by_position):
            self.proposed_by_position[position] += count
        for position, count in enumerate(other.accepted_by_position):
            self.accepted_by_position[position] += count
