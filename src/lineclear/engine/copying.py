"""Copies runs from one memory to another within a process, beside threads that compute.

Long runs are copied with the GIL released. Others are not: giving it back and getting it again costs more than the copy
of most runs, up to a whole switch interval beside a thread that runs Python, and a place in the system's queue where
cores are scarce. Instead it is offered to others after every `YIELD_BYTES`: a thread that computes is held up for a
millisecond or two at a time, and in sum for no longer than the copy takes. Beside such a thread, against one memcpy of
the same bytes: 0.97 of its speed for 2 MB in runs of 200 KiB, 0.99 for 7 MB in runs of 800 KiB, 0.64 for 2 MB in runs
of 12 KiB, where giving the GIL back at each run of 128 KiB and after each MiB of shorter ones reached 0.79, 0.93, 0.55.
Runs of 4 and 13 KiB all over 162 MiB come to 0.4, and a loop in C would reach 0.6, because caches and pages are what
such runs cost; `process_vm_writev` of 1,024 runs at a time, numpy's and torch's indexing are slower than this loop. So
blocks are handed out such that runs are long (`BlockPool.try_allocate`).
"""

import time
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Runs: TypeAlias = NDArray[np.int64]
"""Runs to copy: shape (num_runs, 3), each row a source, a destination and a length."""

LONG_RUN_BYTES: Final = 8 * 1024 * 1024
"""From here on a copy takes longer than handing the GIL over twice, however busy the machine."""
PIECE_BYTES: Final = 64 * 1024 * 1024
"""The longest copy before the next look at `is_stopped`: some milliseconds."""
YIELD_BYTES: Final = 8 * 1024 * 1024
"""How much is copied in other runs before others may run: one to two milliseconds."""


def copy_runs(source: memoryview, destination: memoryview, runs: Runs, is_stopped: Callable[[], bool]) -> bool:
    """Copy all runs, in order; whether it came to the end before it was stopped.

    Mutates: `destination`, within the runs.
    """
    unyielded_bytes = 0
    for start, to, num_bytes in runs.tolist():
        if num_bytes < LONG_RUN_BYTES:
            destination[to : to + num_bytes] = source[start : start + num_bytes]
            unyielded_bytes += num_bytes
            if unyielded_bytes < YIELD_BYTES:
                continue
            unyielded_bytes = 0
            time.sleep(0)
        elif not _copy_long(source[start : start + num_bytes], destination[to : to + num_bytes], is_stopped):
            return False
        if is_stopped():
            return False
    return True


def _copy_long(source: memoryview, destination: memoryview, is_stopped: Callable[[], bool]) -> bool:
    of, to = np.frombuffer(source, dtype=np.uint8), np.frombuffer(destination, dtype=np.uint8)
    for start in range(0, len(of), PIECE_BYTES):
        if is_stopped():
            return False
        np.copyto(to[start : start + PIECE_BYTES], of[start : start + PIECE_BYTES])
    return True
