"""Starting `lineclear` as a user does, waiting for what it says, and looking at its processes from outside."""

import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

PATIENCE_SECONDS = 60.0
"""Far above what anything here takes; reached only by what will never happen."""


class Program:
    """A running program whose output is read line by line as it comes, stderr included."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            text=True,
        )
        self.output: list[str] = []
        self._lines: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return the match in the next line that has one."""
        while True:
            line = self._next_line()
            if match := re.search(pattern, line):
                return match

    def wait(self) -> int:
        """Wait for the end and return the exit code; `output` is then complete."""
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code

    def signal(self, number: int) -> None:
        """Send a signal to the program alone."""
        self.process.send_signal(number)

    @property
    def text(self) -> str:
        """Everything that was printed so far."""
        return "".join(self.output)

    def _next_line(self) -> str:
        try:
            line = self._lines.get(timeout=PATIENCE_SECONDS)
        except Empty:
            raise AssertionError(f"it says no more than:\n{self.text}") from None
        if line is None:
            raise AssertionError(f"it ended with:\n{self.text}")
        return line

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self.output.append(line)
                self._lines.put(line)
        self._lines.put(None)


@contextmanager
def running(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, *, within: Sequence[str] = ()
) -> Iterator[Program]:
    """Run a program; whatever the test leaves of it and its children is killed.

    `within` is the command that runs it somewhere else, in place of itself.
    """
    program = Program([*within, sys.executable, *arguments], environment or {})
    watched: set[int] = set()
    try:
        yield program
        watched = descendants(program.process.pid)
    finally:
        program.process.kill()
        program.process.wait()
        for pid in watched:
            wait_for_end(pid)


def children_by_command(pid: int) -> dict[str, int]:
    """The children of a process by the last word of their command line."""
    return {_command_line(child)[-1]: child for child in _children(pid)}


def descendants(pid: int) -> set[int]:
    """All processes below a process."""
    found: set[int] = set()
    for child in _children(pid):
        found |= {child} | descendants(child)
    return found


def wait_for_end(pid: int) -> None:
    """Wait until a process that need not be a child has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(PATIENCE_SECONDS * 1000), f"process {pid} still runs"
    finally:
        os.close(pidfd)


def _children(pid: int) -> list[int]:
    """Of all its threads: who forks is the parent."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except FileNotFoundError:
        return []


def _command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
