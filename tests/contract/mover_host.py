"""One process that has a memory, and what a test wants it to do with it.

A `Host` is a memory with its admissions and, if wanted, its writer. `RemoteHost` is one in a process of its own,
started as `python -m tests.contract.mover_host KIND`, which obeys one call at a time over a socket. `FakeHost` is one
in the test's process, because a fake reaches no other.
"""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from lineclear.engine.bell import wait_readable
from lineclear.transport.movers.fake import FakeAdmission, FakeMover, FakeWriter
from lineclear.transport.movers.mover import Admission, Completion, Memory, Mover, Span, Writer
from tests.contract.mover_kinds import MOVERS

PATIENCE_SECONDS = 20.0
"""Far above what any call here takes; reached only by what hangs."""

RUN_BYTES = 16 * 1024
FLOOD_VARIANTS = 4
"""Posts of a flood that follow each other read from different places, so that the destination keeps changing."""


class Host:
    """A memory, who may write into it, and the writer that reads from it."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover
        self._memory: Memory | None = None
        self._writer: Writer | None = None
        self._admissions: dict[bytes, Admission] = {}

    def open(self, num_bytes: int, seed: int | None = None) -> None:
        """Make the memory: zeros, or random bytes of that seed."""
        self._memory = self._mover.open_memory(num_bytes)
        if seed is not None:
            self._memory.buffer[:] = np.random.default_rng(seed).bytes(num_bytes)

    def open_writer(self) -> bytes:
        """Make the writer, and return its identity."""
        self._writer = self._mover.open_writer(self.memory)
        return self._writer.identity

    @property
    def memory(self) -> Memory:
        assert self._memory is not None
        return self._memory

    @property
    def writer(self) -> Writer:
        assert self._writer is not None
        return self._writer

    def identity(self) -> bytes:
        return self.writer.identity

    def key(self) -> bytes:
        return self.memory.key

    def admit(self, identity: bytes) -> bytes:
        """Let a writer in, and return the key to give it."""
        self._admissions[identity] = self.memory.admit(identity)
        return self.memory.key

    def fence(self, identity: bytes) -> bool:
        return self._admissions[identity].fence()

    def close_admission(self, identity: bytes) -> None:
        self._admissions.pop(identity).close()

    def read(self) -> bytes:
        return bytes(self.memory.buffer)

    def read_range(self, start: int, end: int) -> bytes:
        return bytes(self.memory.buffer[start:end])

    def digest(self) -> bytes:
        """A short name for what the memory holds now."""
        return hashlib.blake2b(self.memory.buffer, digest_size=16).digest()

    def address(self) -> int:
        return int(np.frombuffer(self.memory.buffer, dtype=np.uint8).ctypes.data)

    def post(self, ticket: int, memory_key: bytes, spans: Sequence[Span]) -> None:
        self.writer.post(ticket, memory_key, spans)

    def post_all(self, memory_key: bytes, writes: dict[int, list[Span]]) -> None:
        """Begin one write for each ticket."""
        for ticket, spans in writes.items():
            self.writer.post(ticket, memory_key, spans)

    def flood(self, memory_key: bytes, num_posts: int) -> None:
        """Begin tickets 0 to `num_posts`, each into all of the other memory, in short runs in no order."""
        num_runs = self.memory.num_bytes // RUN_BYTES - 1
        order = np.random.default_rng(7).permutation(num_runs).tolist()
        variants = [
            [Span(run * RUN_BYTES + variant * 4096, run * RUN_BYTES, RUN_BYTES) for run in order]
            for variant in range(FLOOD_VARIANTS)
        ]
        for ticket in range(num_posts):
            self.writer.post(ticket, memory_key, variants[ticket % FLOOD_VARIANTS])

    def poll(self) -> list[Completion]:
        return self.writer.poll()

    def is_readable(self, timeout_seconds: float) -> bool:
        """Whether the writer's descriptor becomes readable in that time."""
        return wait_readable([self.writer.fileno()], timeout_seconds)

    def forget(self, memory_key: bytes) -> None:
        self.writer.forget(memory_key)

    def close_writer(self) -> list[Completion]:
        """Close the writer, and return what it still owed."""
        self.writer.close()
        return self.writer.poll()

    def post_and_close(self, memory_key: bytes, writes: dict[int, list[Span]]) -> list[Completion]:
        """Begin all and close at once, and return the answers."""
        self.post_all(memory_key, writes)
        return self.close_writer()

    def close_memory(self) -> None:
        """Close admissions and memory."""
        for identity in list(self._admissions):
            self.close_admission(identity)
        self.memory.close()
        self._memory = None

    def reset(self) -> None:
        """Close whatever is open, in order."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._memory is not None:
            self.close_memory()

    def cpu_seconds(self) -> float:
        return time.process_time()

    def num_descriptors(self) -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    def num_threads(self) -> int:
        return sum(1 for _ in Path("/proc/self/task").iterdir())

    def num_mappings(self) -> int:
        """How often memory of movers is mapped."""
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:lineclear-kv")

    def kill(self) -> None:
        """End the process at once."""
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self) -> None:
        """Freeze the process."""
        raise NotImplementedError

    def resume(self) -> None:
        """Go on after `stop`."""
        raise NotImplementedError


class FakeHost(Host):
    """A host in this process, of a world of fakes: whenever it is asked, one run of each write lands."""

    def __init__(self, mover: FakeMover) -> None:
        super().__init__(mover)
        self._is_frozen = False

    def poll(self) -> list[Completion]:
        self._land_some()
        return super().poll()

    def is_readable(self, timeout_seconds: float) -> bool:
        self._land_some(all_runs=True)
        return super().is_readable(0.0 if timeout_seconds == 0.0 else 0.01)

    def kill(self) -> None:
        if self._writer is not None:
            self._fake_writer.kill()
        if self._memory is not None:
            self._memory.close()

    def stop(self) -> None:
        self._is_frozen = True

    def resume(self) -> None:
        self._is_frozen = False

    def refuse_fences(self, identity: bytes) -> None:
        admission = self._admissions[identity]
        assert isinstance(admission, FakeAdmission)
        admission.refuse_fences = True

    @property
    def _fake_writer(self) -> FakeWriter:
        assert isinstance(self._writer, FakeWriter)
        return self._writer

    def _land_some(self, *, all_runs: bool = False) -> None:
        if self._is_frozen:
            return
        for ticket in self._fake_writer.flying:
            self._fake_writer.land(ticket, None if all_runs else 1)


class RemoteHost:
    """A `Host` in a process of its own: the same calls, but `memory` and `writer`."""

    def __init__(self, kind: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.contract.mover_host", kind, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
                cwd=Path(__file__).parents[2],
            )
        self._connection = Connection(ours.detach())

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self._connection.send((name, arguments))
        if not self._connection.poll(PATIENCE_SECONDS):
            self.kill()
            raise TimeoutError(f"{name} did not return in {PATIENCE_SECONDS} s")
        result = self._connection.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self) -> None:
        """End the process at once, and collect it."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        self._connection.close()

    def stop(self) -> None:
        """Freeze the process; returns when it is frozen."""
        self._process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status

    def resume(self) -> None:
        """Go on after `stop`."""
        self._process.send_signal(signal.SIGCONT)


def main() -> None:
    """Obey calls until the other side is gone."""
    kind, descriptor = sys.argv[1:]
    connection = Connection(int(descriptor))
    host = Host(MOVERS[kind]())
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            result = getattr(host, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            result = error
        connection.send(result)


if __name__ == "__main__":
    main()
