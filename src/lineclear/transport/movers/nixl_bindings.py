"""What is used of NIXL's Python bindings, typed, and the one transport of UCX that they may use here.

The bindings are used directly because the `nixl_agent` around them sets `pthrDelay` to 0, with which the progress
thread of each agent spins one core for as long as the agent lives (nixl-cu13 1.5.1, `_api.py`; 99% of a core measured).

**TCP only.** That a door can be shut (`nixl_memory.py`) rests on this process itself putting the bytes where they go.
Over UCX's `cma` the writer's kernel call does it, on pages that it has pinned before, and RDMA does it past both
processes. `UCX_TLS` in the environment goes before whatever is set through NIXL (its `engine_config` too, which was
tried), so it is set there, and another value that is there already is refused.
"""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from lineclear.transport.movers.mover import MoverError

Descriptors = NDArray[np.uint64]
"""Shape (n, 3): address, num_bytes, device, which is 0."""


class NixlConfig(Protocol):
    """Options of an agent. `pthrDelay` is in µs: how long the progress thread sleeps at most where nothing comes."""

    useProgThread: bool  # noqa: N815 - NIXL's names
    useListenThread: bool  # noqa: N815
    pthrDelay: int  # noqa: N815
    syncMode: object  # noqa: N815


class NixlAgentHandle(Protocol):
    """An agent. Every call but `getLocalMD` may raise one of the bindings' exceptions."""

    def createBackend(self, kind: str, params: dict[str, str], /) -> int:  # noqa: N802
        """Begin to use a transport library."""
        ...

    def registerMem(self, regions: object, backends: Sequence[int], /) -> None:  # noqa: N802
        """Make memory known to the transport."""
        ...

    def getLocalMD(self) -> bytes:  # noqa: N802
        """Return what others need to reach the agent and what it has registered."""
        ...

    def loadRemoteMD(self, metadata: bytes, /) -> str:  # noqa: N802
        """Make another agent known, and return its name."""
        ...

    def createXferReq(  # noqa: N802
        self, operation: object, local: object, remote: object, peer: str, message: bytes, backends: Sequence[int], /
    ) -> int:
        """Prepare a transfer. Nothing of it is sent."""
        ...

    def postXferReq(self, request: int, message: bytes, /) -> object:  # noqa: N802
        """Begin a transfer, and return its status."""
        ...

    def getXferStatus(self, request: int, /) -> object:  # noqa: N802
        """Drive transfers on, and return the status of one."""
        ...

    def releaseXferReq(self, request: int, /) -> object:  # noqa: N802
        """Drop a transfer. One that is flying goes on, whatever this returns."""
        ...


class NixlBindings(Protocol):
    """The module."""

    nixlAgentConfig: type[NixlConfig]  # noqa: N815
    NIXL_THREAD_SYNC_NONE: object
    DRAM_SEG: object
    NIXL_WRITE: object
    NIXL_SUCCESS: object
    NIXL_IN_PROG: object

    def nixlAgent(self, name: str, config: NixlConfig, /) -> NixlAgentHandle:  # noqa: N802
        """Open an agent. It ends with its last reference."""
        ...

    def nixlRegDList(self, kind: object, regions: list[tuple[int, int, int, str]], /) -> object:  # noqa: N802
        """Regions to register: address, num_bytes, device, a tag."""
        ...

    def nixlXferDList(self, kind: object, descriptors: Descriptors, /) -> object:  # noqa: N802
        """One side of a transfer."""
        ...


def load_bindings() -> NixlBindings:
    """Import NIXL and see to it that its UCX uses TCP.

    Mutates: `UCX_TLS` of this process's environment, for good, where it was not set.

    Raises:
        MoverError: It is not installed, or `UCX_TLS` asks for more.
    """
    _use_tcp_only()
    try:
        module: Any = importlib.import_module("nixl_cu13._bindings")
    except ImportError as error:
        raise MoverError(f"the nixl mover needs NIXL: pip install 'lineclear[nixl]' ({error})") from error
    return cast("NixlBindings", module)


_NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia")


def _use_tcp_only() -> None:
    # With a GPU in the machine NIXL wants cuda_copy, which copies within a process and reaches no other.
    allowed = "tcp,cuda_copy" if _NVIDIA_DRIVER.exists() else "tcp"
    found = os.environ.setdefault("UCX_TLS", allowed)
    if found not in ("tcp", "tcp,cuda_copy"):
        raise MoverError(
            f"UCX_TLS is {found!r} in the environment, but only over tcp can a writer be cut off: unset it"
        )
