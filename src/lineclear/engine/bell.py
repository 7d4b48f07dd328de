"""A descriptor that one thread makes readable for another's event loop."""

import contextlib
import math
import os
import select
from collections.abc import Iterable


class Bell:
    """Readable from `ring` to `silence`. Any thread may ring; rings are not counted."""

    def __init__(self) -> None:
        self._heard, self._rung = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._rung, False)

    def ring(self) -> None:
        """Make it readable. A full pipe is ringing already."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._rung, b"!")

    def silence(self) -> None:
        """Make it unreadable until the next ring.

        Order: before looking for what was rung for, so that a ring in between is heard again.
        """
        with contextlib.suppress(BlockingIOError):
            while os.read(self._heard, 4096):
                pass

    def fileno(self) -> int:
        """Return the readable descriptor."""
        return self._heard

    def close(self) -> None:
        """Close both ends.

        Order: after every thread that rings has ended.
        """
        os.close(self._heard)
        os.close(self._rung)


def wait_readable(filenos: Iterable[int], seconds: float = math.inf) -> bool:
    """Wait for so long until one of these is readable; whether one is.

    By `poll`, since `select` refuses descriptors from 1,024 on, which a process with many connections has.
    """
    poller = select.poll()
    for fileno in filenos:
        poller.register(fileno, select.POLLIN)
    return bool(poller.poll(None if math.isinf(seconds) else max(0.0, 1000 * seconds)))
