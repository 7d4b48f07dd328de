"""The child's side of being supervised: how a gateway or worker process starts, reports, and never outlives its parent.

The supervisor writes one JSON line, the start message, to the child's stdin and keeps the pipe open; its end means that
the supervisor is gone. The child's original stdout carries reports; whatever else is printed goes to stderr.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from lineclear.base.errors import LineclearError, PeerError
from lineclear.cli.exit_codes import EXIT_ORPHANED, EXIT_USER_ERROR
from lineclear.config.components import ServeConfig
from lineclear.transport.reports import Failed, Report, ReportSink, encode_report
from lineclear.worker.seat import Seat

PR_SET_PDEATHSIG = 1
"""Linux: `prctl` option for the signal that a process gets when its parent ends."""

STDIN = 0
STDOUT = 1
STDERR = 2


class GatewayStart(msgspec.Struct, frozen=True):
    """What a gateway process is started with."""

    config: ServeConfig
    control_endpoint: str


class WorkerStart(msgspec.Struct, frozen=True):
    """What a worker process is started with."""

    config: ServeConfig
    control_endpoint: str
    seat: Seat


StartT = TypeVar("StartT", GatewayStart, WorkerStart)


def begin_child(start_type: type[StartT]) -> tuple[StartT, ReportSink]:
    """Tie this process to its supervisor; return the start message and where to report.

    Raises:
        PeerError: Whoever started this process is no supervisor.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the supervisor's business
    _die_with_parent()
    start = _read_start(start_type)
    threading.Thread(target=_exit_when_orphaned, name="orphan-watch", daemon=True).start()
    start_logging(start.config)
    return start, _report_sink()


def start_logging(config: ServeConfig) -> None:
    """Let records of a gateway or worker process go to stderr."""
    level = config.supervisor.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


@contextmanager
def reporting_failure(report: ReportSink) -> Generator[None]:
    """Report an error that a restart would repeat, and exit: the supervisor says it, as its last word."""
    try:
        yield
    except LineclearError as error:
        report(Failed(str(error)))
        sys.exit(EXIT_USER_ERROR)


def _read_start(start_type: type[StartT]) -> StartT:
    """Read up to the line's end and no further, so that the pipe's end is all that is left."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(STDIN, 65_536)
        if not data:
            break
        line += data
    try:
        return msgspec.json.decode(line, type=start_type)
    except msgspec.MsgspecError as error:
        raise PeerError(f"--child is for children of `lineclear serve`: {error}") from None


def _die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent, where it can: faster than noticing the pipe's end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit_when_orphaned() -> None:
    while os.read(STDIN, 65_536):
        pass
    os._exit(EXIT_ORPHANED)


def _report_sink() -> ReportSink:
    reports_fd = os.dup(STDOUT)
    os.set_inheritable(reports_fd, False)
    os.dup2(STDERR, STDOUT)

    def report(report: Report) -> None:
        os.write(reports_fd, encode_report(report))

    return report
