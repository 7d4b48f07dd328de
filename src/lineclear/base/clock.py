"""The clock as the code that acts sees it; the code that decides gets logical times as arguments instead."""

from typing import Protocol


class Clock(Protocol):
    """Tells how much time has passed."""

    def now(self) -> float:
        """Return the present time.

        Units: seconds since a fixed, arbitrary origin; never runs backwards.
        """
        ...
