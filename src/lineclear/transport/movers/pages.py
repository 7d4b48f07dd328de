"""Memory of a process that can be mapped more than once: by other processes, or at a second address in this one.

A memfd has no name in any file system, so nothing stays behind however its processes end: the pages are freed with the
last mapping. Its size is sealed, so nobody who has mapped it can run into pages that are gone.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
from typing import Final

from lineclear.transport.movers.mover import MoverError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_PROT: Final = mmap.PROT_READ | mmap.PROT_WRITE


class Pages:
    """A memfd with a name that no other has, mapped and zero."""

    def __init__(self, num_bytes: int) -> None:
        """Make them.

        Raises:
            MoverError: The system refuses.
        """
        assert num_bytes > 0, num_bytes
        self.num_bytes = num_bytes
        self.name = "lineclear-kv-" + secrets.token_hex(16)
        self.fd = -1
        try:
            self.fd = os.memfd_create(self.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, num_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._mapping = mmap.mmap(self.fd, num_bytes)
        except (OSError, ValueError) as error:
            self._close_descriptor()
            raise MoverError(f"memory of {num_bytes} bytes: {error}") from error
        self.buffer = memoryview(self._mapping)

    def close(self) -> None:
        """Close the descriptor; the mapping goes with the last view of the buffer."""
        self._close_descriptor()
        self.buffer = memoryview(b"")
        with contextlib.suppress(BufferError):  # views of it that are left keep it
            self._mapping.close()

    def _close_descriptor(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Alias:
    """The same pages at a second address of this process, which can be taken away from whoever knows the address.

    The address range is never given back, so that it never means anything else: a few bytes of kernel memory each.
    """

    def __init__(self, pages: Pages) -> None:
        """Map the pages once more.

        Raises:
            MoverError: The system refuses.
        """
        self._num_bytes = pages.num_bytes
        self.address = _map(None, pages.num_bytes, mmap.MAP_SHARED, pages.fd)

    def detach(self) -> None:
        """Put pages there that nobody reads: what is written to the address from now on changes nothing else.

        Raises:
            MoverError: The system refuses, and the address still means the pages.
        """
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
        _map(self.address, self._num_bytes, flags, -1)


def _map(address: int | None, num_bytes: int, flags: int, fd: int) -> int:
    mapped = _libc.mmap(address, num_bytes, _PROT, flags, fd, 0)
    if mapped is None or mapped == _MAP_FAILED:
        raise MoverError(f"a mapping of {num_bytes} bytes: {os.strerror(ctypes.get_errno())}")
    return int(mapped)


_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
