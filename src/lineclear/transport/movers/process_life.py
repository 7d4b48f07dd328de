"""One life of a process on this host, and the proof that it is over.

A process id alone is no identity: it is used again. A life is the id together with the moment the process began, the
namespace in which the id counts, and the boot of the kernel. A *watch* is a pidfd: it is opened while the process is
seen to be the right one, from then on means that process and no later one, and is readable once all threads of the
process have ended, which is after the kernel has taken their address space away.
"""

import os
import select
from pathlib import Path

import msgspec

from lineclear.transport.movers.mover import MoverError

_START_TICKS = 19
"""Field of /proc/PID/stat, counted from the one after the command's name, which may contain anything."""


class ProcessLife(msgspec.Struct, frozen=True):
    """One life of a process. `start_ticks` counts clock ticks since the boot."""

    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int


def own_life() -> ProcessLife:
    """Return the life of this process.

    Raises:
        MoverError: There is no /proc to read it from.
    """
    try:
        return ProcessLife(_boot_id(), _pid_namespace(), os.getpid(), _start_ticks(os.getpid()))
    except OSError as error:
        raise MoverError(f"this process cannot be identified: {error}") from error


def is_of_this_host(life: ProcessLife) -> bool:
    """Whether that process, if it is alive, has the same number here as there."""
    return (life.boot_id, life.pid_namespace) == (_boot_id(), _pid_namespace())


class ProcessWatch:
    """A process of this host that is known to be the one that was meant."""

    def __init__(self, life: ProcessLife) -> None:
        """Begin to watch a process that is alive.

        Raises:
            MoverError: It is not a process of this host that can be seen from here, or it is over already.
        """
        self._has_ended = False
        if not is_of_this_host(life):
            raise MoverError(f"process {life.pid} is of another host or container: its end cannot be seen from here")
        try:
            self._pidfd = os.pidfd_open(life.pid)
        except OSError as error:
            raise MoverError(f"process {life.pid} cannot be watched: {error.strerror}") from error
        if not self._is(life):
            os.close(self._pidfd)
            raise MoverError(f"process {life.pid} has ended, and its number may be somebody else's")

    def has_ended(self) -> bool:
        """Whether every thread of the process is gone, for good."""
        if not self._has_ended and self._pidfd >= 0:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            self._has_ended = bool(poller.poll(0))
        return self._has_ended

    def close(self) -> None:
        """Stop watching; what is known stays known."""
        if self._pidfd >= 0:
            self.has_ended()
            os.close(self._pidfd)
            self._pidfd = -1

    def _is(self, life: ProcessLife) -> bool:
        """Whether the pidfd means that life: it has not ended after its number was seen with the right start."""
        try:
            return _start_ticks(life.pid) == life.start_ticks and not self.has_ended()
        except OSError:
            return False


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _start_ticks(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[_START_TICKS])
