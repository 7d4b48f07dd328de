"""CPU time that a worker's desk takes, links included, counted in a file that others read while it runs."""

import mmap
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lineclear.worker.decode_desk import DecodeDesk
from lineclear.worker.prefill_desk import PrefillDesk

ENTRIES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (DecodeDesk, ("submit", "open", "begin", "turn", "on_updates")),
    (PrefillDesk, ("turn", "on_updates")),
)
"""How the loop and the scheduler enter a desk; none of these calls another."""

_SECONDS = struct.Struct("d")


def count_desk_cpu(path: Path) -> None:
    """Count from now on what this process's desk takes, in seconds."""
    path.write_bytes(_SECONDS.pack(0.0))
    with path.open("r+b") as file:
        total = mmap.mmap(file.fileno(), _SECONDS.size)

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:  # noqa: ANN401 - whatever the method returns
            started = time.thread_time()
            try:
                return method(*arguments)
            finally:
                seconds = _SECONDS.unpack_from(total)[0] + time.thread_time() - started
                _SECONDS.pack_into(total, 0, seconds)

        return call

    for desk, names in ENTRIES:
        for name in names:
            setattr(desk, name, counted(getattr(desk, name)))


def desk_cpu_seconds(path: Path) -> float:
    """What was counted so far."""
    return _SECONDS.unpack(path.read_bytes())[0]
