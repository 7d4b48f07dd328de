"""Peak memory of this process, from the kernel."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What proc(5) wants written to `clear_refs` to reset the peak resident set size."""


@dataclass
class Peak:
    """How far the resident set grew; complete once the context has ended."""

    num_bytes: int = 0


@contextmanager
def peak_bytes_beyond_start() -> Iterator[Peak]:
    """Measure the peak resident set inside the context, beyond what was resident at its start.

    What earlier work has freed goes back to the system first: kept by the allocator, it would be used again, uncounted.
    Linux with glibc only.
    """
    peak = Peak()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR_REFS.write_text(RESET_PEAK, encoding="ascii")
    start = _status_bytes("VmRSS")
    yield peak
    peak.num_bytes = _status_bytes("VmHWM") - start


def _status_bytes(field: str) -> int:
    lines = STATUS.read_text(encoding="ascii").splitlines()
    (line,) = [line for line in lines if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024
