"""The supervisor's side of a child process: start it, hear its reports, stop it, learn how it ended."""

import asyncio
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

import msgspec

from lineclear.base.errors import PeerError
from lineclear.cli.child import GatewayStart, WorkerStart
from lineclear.transport.reports import Report, decode_report

MAX_REPORT_BYTES = 1024 * 1024


class ChildProcess:
    """A gateway or worker process that is running or has ended."""

    def __init__(self, process: Process, started_at: float) -> None:
        self.started_at = started_at
        self._process = process

    @classmethod
    async def start(cls, program: Sequence[str], start: GatewayStart | WorkerStart) -> "ChildProcess":
        """Start a program with a start message.

        Its process group is its own, so that the terminal's Ctrl-C reaches only the supervisor.
        """
        process = await asyncio.create_subprocess_exec(
            *program, stdin=PIPE, stdout=PIPE, limit=MAX_REPORT_BYTES, process_group=0
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(start) + b"\n")
        return cls(process, asyncio.get_running_loop().time())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def watch(self, on_report: Callable[[Report], None]) -> int:
        """Pass on every report until the process ends; return its exit code, negative for a signal.

        A process that reports nonsense is killed.
        """
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                on_report(decode_report(line))
            except PeerError:
                self.kill()
        return await self.wait()

    async def wait(self) -> int:
        """Wait until the process has ended; return its exit code, negative for a signal."""
        return await self._process.wait()

    def terminate(self) -> None:
        """Ask the process to finish: a gateway drains, a worker stops."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
