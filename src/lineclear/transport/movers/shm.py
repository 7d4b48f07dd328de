"""The mover for processes of one host: `shm_memory.py` has its memory and fence, `shm_writer.py` its copies."""

from lineclear.transport.movers.mover import Memory
from lineclear.transport.movers.shm_memory import ShmMemory
from lineclear.transport.movers.shm_writer import ShmCopier
from lineclear.transport.movers.threaded_writer import ThreadedWriter


class ShmMover:
    """Shared memory of one host, one user and one pid namespace."""

    def open_memory(self, num_bytes: int) -> ShmMemory:
        """Make a memory of zeros.

        Raises:
            MoverError: The system has no memfd, no /proc or no room.
        """
        return ShmMemory(num_bytes)

    def open_writer(self, memory: Memory) -> ThreadedWriter:
        """Make a writer that reads from one of these memories."""
        assert isinstance(memory, ShmMemory), type(memory)
        return ThreadedWriter(memory.key, ShmCopier(memory).work, "shm-writer")
