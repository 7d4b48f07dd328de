"""The mover between hosts: `nixl_memory.py` has its memory and fence, `nixl_writer.py` its writes."""

import secrets

from lineclear.transport.movers.mover import Memory
from lineclear.transport.movers.nixl_bindings import load_bindings
from lineclear.transport.movers.nixl_memory import NixlMemory, encode_identity
from lineclear.transport.movers.nixl_writer import NixlPoster
from lineclear.transport.movers.threaded_writer import ThreadedWriter


class NixlMover:
    """NIXL with UCX over TCP."""

    def __init__(self) -> None:
        """Load NIXL.

        Raises:
            MoverError: It is not installed, or the environment asks UCX for another transport.
        """
        self._bindings = load_bindings()

    def open_memory(self, num_bytes: int) -> NixlMemory:
        """Make a memory of zeros.

        Raises:
            MoverError: The system has no memfd, no /proc or no room.
        """
        return NixlMemory(self._bindings, num_bytes)

    def open_writer(self, memory: Memory) -> ThreadedWriter:
        """Make a writer that reads from one of these memories."""
        assert isinstance(memory, NixlMemory), type(memory)
        name = secrets.token_bytes(16)
        return ThreadedWriter(encode_identity(name), NixlPoster(self._bindings, memory, name).work, "nixl-writer")
