"""Memory shared by the processes of one host, and the fence of its writers.

A writer finds the memory as /proc/PID/fd/N of its owner, which the kernel opens for processes of the same user only;
that needs no file, no socket between the two, and no order of starting. What was opened is the right memory exactly if
its memfd carries the key's random name, whatever became of the process id and the descriptor in the meantime (R10).

Fence (R9): a mapping cannot be taken away from another process, so a writer can write until its process is gone, and
`ShmAdmission.fence` only observes. The proof is a pidfd that was opened while the writer was seen alive and to be
itself: it holds the memfd that its identity names. The pidfd is readable when every thread of the process has ended.
Children that the writer forked have no mapping of this memory (`MADV_DONTFORK`). A frozen process is not gone.

So this needs one host, one user, one pid namespace and Linux; everything else is refused when the writer is admitted.
"""

import contextlib
import mmap
import os
from pathlib import Path

import msgspec

from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.pages import Pages
from lineclear.transport.movers.process_life import ProcessLife, ProcessWatch, own_life


class ShmKey(msgspec.Struct, frozen=True, tag="shm", forbid_unknown_fields=True):
    """Where a memory is: descriptor `fd` of a process, if that still is the memfd with this name."""

    life: ProcessLife
    fd: int
    name: str
    num_bytes: int

    def path(self) -> Path:
        """Where the kernel shows the descriptor."""
        return Path(f"/proc/{self.life.pid}/fd/{self.fd}")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ShmKey)


def decode_key(key: bytes) -> ShmKey:
    """Read a memory's key, or a writer's identity, which is the key of its own memory.

    Raises:
        MoverError: It is neither.
    """
    try:
        return _decoder.decode(key)
    except msgspec.MsgspecError as error:
        raise MoverError(f"no key of an shm memory: {error}") from error


class ShmMemory:
    """Pages that other processes map."""

    def __init__(self, num_bytes: int) -> None:
        """Make the memory.

        Raises:
            MoverError: The system refuses it.
        """
        life = own_life()
        self._pages = Pages(num_bytes)
        self._key = _encoder.encode(ShmKey(life, self._pages.fd, self._pages.name, num_bytes))

    @property
    def num_bytes(self) -> int:
        """The size of the buffer."""
        return self._pages.num_bytes

    @property
    def buffer(self) -> memoryview:
        """All bytes, writable."""
        return self._pages.buffer

    @property
    def key(self) -> bytes:
        """Where the memory is: the same for all writers, and the identity of the writer that reads from it."""
        return self._key

    def admit(self, identity: bytes) -> "ShmAdmission":
        """Begin to watch a writer's process.

        Raises:
            MoverError: Its end could not be seen from here.
        """
        return ShmAdmission(identity)

    def close(self) -> None:
        """Close the descriptor, so that no writer finds it any more; those that have mapped the pages keep them."""
        self._pages.close()


class ShmAdmission:
    """A writer's process, watched."""

    def __init__(self, identity: bytes) -> None:
        """Begin to watch.

        Raises:
            MoverError: Its end could not be seen from here.
        """
        key = decode_key(identity)
        self._watch = ProcessWatch(key.life)
        try:
            is_itself = holds_memory(key.path(), key)
        except OSError as error:
            self._watch.close()
            raise MoverError(f"the memory of writer process {key.life.pid} cannot be seen: {error.strerror}") from error
        if not is_itself:
            self._watch.close()
            raise MoverError(f"process {key.life.pid} is not the writer that it is said to be")

    def fence(self) -> bool:
        """Whether the process has been seen gone, all threads of it."""
        return self._watch.has_ended()

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()


class ShmDestination:
    """Another process's memory, mapped by a writer. Its process may end: the pages stay until this is closed."""

    def __init__(self, memory_key: bytes) -> None:
        """Map it.

        Raises:
            MoverError: The key is none, or its memory is not there any more or not for us.
        """
        key = decode_key(memory_key)
        try:
            descriptor = os.open(key.path(), os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise MoverError(f"the memory of process {key.life.pid} is not there: {error.strerror}") from error
        try:
            if not holds_memory(Path(f"/proc/self/fd/{descriptor}"), key):
                raise MoverError(f"descriptor {key.fd} of process {key.life.pid} is another memory by now")
            if os.fstat(descriptor).st_size != key.num_bytes:
                raise MoverError(f"the memory of process {key.life.pid} has not the {key.num_bytes} bytes of its key")
            self._mapping = mmap.mmap(descriptor, key.num_bytes)
            self._mapping.madvise(mmap.MADV_DONTFORK)
        except (OSError, ValueError) as error:
            raise MoverError(f"the memory of process {key.life.pid} cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        self.num_bytes = key.num_bytes
        self.buffer = memoryview(self._mapping)

    def close(self) -> None:
        """Unmap it.

        Order: when no copy uses it.
        """
        with contextlib.suppress(BufferError):
            self.buffer.release()
            self._mapping.close()


def holds_memory(path: Path, key: ShmKey) -> bool:
    """Whether the descriptor that /proc shows at `path` is the memory of that key.

    Raises:
        OSError: There is none, or it cannot be seen from here.
    """
    return str(path.readlink()) == f"/memfd:{key.name} (deleted)"
