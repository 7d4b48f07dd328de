"""When blocks go down a tier."""

from enum import StrEnum


class OffloadPolicy(StrEnum):
    """When a block is copied to the tier below. It is given up above only when its room is needed there."""

    WRITE_THROUGH = "write_through"
    """As soon as it is there."""
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    """When it is used again."""
    WRITE_BACK = "write_back"
    """Shortly before it is given up above."""


class PrefetchPolicy(StrEnum):
    """How long a queued request waits for what is on disk."""

    BEST_EFFORT = "best_effort"
    """Not at all: it uses what is in host memory when its turn comes."""
    WAIT = "wait"
    """Until everything is in host memory."""
    TIMEOUT = "timeout"
    """The same, but only for a time."""
