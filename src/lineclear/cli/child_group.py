"""The supervisor's side of a worker of several processes: the ranks of a prefill instance, which live and end together.

The first rank is asked to finish and lets the others go. When one ends by itself, the others are of no use: they are
killed, so that the next life finds none of this one.
"""

import asyncio
from collections.abc import Callable, Sequence

from lineclear.cli.child import GatewayStart, WorkerStart
from lineclear.cli.child_process import ChildProcess
from lineclear.cli.exit_codes import EXIT_USER_ERROR
from lineclear.transport.reports import Report

GOODBYE_SECONDS = 5.0
"""How long the other ranks may take to end after the first one has let them go."""


class ChildGroup:
    """One or more processes of one life, as the supervisor sees them: one.

    Args:
        children: rank 0's process first.
    """

    def __init__(self, children: Sequence[ChildProcess]) -> None:
        self._children = tuple(children)
        self.started_at = children[0].started_at

    @classmethod
    async def start(
        cls, programs: Sequence[Sequence[str]], starts: Sequence[GatewayStart | WorkerStart]
    ) -> "ChildGroup":
        """Start a process with each start message."""
        return cls([await ChildProcess.start(program, start) for program, start in zip(programs, starts, strict=True)])

    async def watch(self, on_report: Callable[[Report], None]) -> int:
        """Pass on every report until all have ended; return the exit code of the first that failed, or 0."""
        watches = {asyncio.create_task(child.watch(on_report)): child for child in self._children}
        try:
            done, others = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            if others and all(watch.result() == 0 for watch in done):
                _, others = await asyncio.wait(others, timeout=GOODBYE_SECONDS)
            codes = [watch.result() for watch in watches if watch.done()]
            for watch in others:
                watches[watch].kill()
            # An error that a restart would repeat is told by every rank; the first to say it may end the others.
            late_codes = await asyncio.gather(*others)
        finally:
            for watch in watches:
                watch.cancel()
        if EXIT_USER_ERROR in late_codes:
            return EXIT_USER_ERROR
        return next((code for code in codes if code), 0)

    async def wait(self) -> None:
        """Wait until all have ended."""
        for child in self._children:
            await child.wait()

    def terminate(self) -> None:
        """Ask the first to finish; the others end with it."""
        self._children[0].terminate()

    def kill(self) -> None:
        """End all at once."""
        for child in self._children:
            child.kill()
