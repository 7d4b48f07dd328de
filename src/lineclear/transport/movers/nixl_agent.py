"""One NIXL agent with UCX and one region of memory: what it serves to a peer, or writes from to one.

An agent here has one peer and no other, so that destroying it ends that peer's connection and nobody else's. Opening
one takes 15 to 30 ms (the first of a process half a second, which loads the plugin) and 16 descriptors; destroying one,
also while 256 MiB fly to it, 10 to 30 ms, and nothing was applied afterwards (measured, nixl-cu13 1.5.1 over loopback).

A served agent has NIXL's progress thread, because over TCP it is the process that is written to which puts the bytes in
place. The thread sleeps in poll(2) until something comes, `WAKE_US` at most. A writing agent has none and is driven by
`look`.
"""

import secrets
import weakref
from typing import Final

import numpy as np

from lineclear.engine.copying import Runs
from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.nixl_bindings import Descriptors, NixlAgentHandle, NixlBindings
from lineclear.transport.movers.spans import DESTINATION, NUM_BYTES, SOURCE

WAKE_US: Final = 100_000
"""Ten wakes a second of an idle agent cost 0.05% of a core; traffic wakes it at once (0.16 ms for a write of 4 KiB)."""


class NixlAgent:
    """An agent and its region [address, address + num_bytes)."""

    def __init__(self, bindings: NixlBindings, address: int, num_bytes: int, *, serves: bool) -> None:
        """Open it.

        Raises:
            MoverError: NIXL or UCX cannot.
        """
        self._bindings = bindings
        self._address = address
        config = bindings.nixlAgentConfig()
        config.useProgThread = serves
        config.useListenThread = False
        config.pthrDelay = WAKE_US
        config.syncMode = bindings.NIXL_THREAD_SYNC_NONE
        try:
            self._agent: NixlAgentHandle | None = bindings.nixlAgent("lineclear-" + secrets.token_hex(16), config)
            self._backends = [self._agent.createBackend("UCX", {})]
            regions = bindings.nixlRegDList(bindings.DRAM_SEG, [(address, num_bytes, 0, "")])
            self._agent.registerMem(regions, self._backends)
        except Exception as error:
            raise MoverError(f"NIXL: no agent with UCX: {error}") from error
        self._last_reference = weakref.ref(self._agent)
        self._peer = ""

    def metadata(self) -> bytes:
        """Return what a writer needs: addresses of UCX and the region's key, no secret among them."""
        return self._opened().getLocalMD()

    def connect(self, metadata: bytes) -> None:
        """Say whom `prepare` is for. Nothing is sent yet.

        Raises:
            MoverError: That is no metadata of an agent.
        """
        try:
            self._peer = self._opened().loadRemoteMD(metadata)
        except Exception as error:
            raise MoverError(f"NIXL: no metadata of an agent: {error}") from error

    def prepare(self, runs: Runs, destination_address: int) -> int:
        """Return a request for one write. Nothing of it is sent.

        Raises:
            MoverError: NIXL refuses it.
        """
        bindings, agent = self._bindings, self._opened()
        local = bindings.nixlXferDList(bindings.DRAM_SEG, _descriptors(runs, SOURCE, self._address))
        remote = bindings.nixlXferDList(bindings.DRAM_SEG, _descriptors(runs, DESTINATION, destination_address))
        try:
            return agent.createXferReq(bindings.NIXL_WRITE, local, remote, self._peer, b"", self._backends)
        except Exception as error:
            raise MoverError(f"NIXL refuses the write: {error!r}") from error

    def begin(self, request: int) -> bool:
        """Send a write; whether it is done already.

        Raises:
            MoverError: It broke off, and nobody knows how much of it is on its way.
        """
        try:
            return self._is_done(self._opened().postXferReq(request, b""))
        except Exception as error:
            raise MoverError(f"the write broke off: {error!r}") from error

    def look(self, request: int) -> bool:
        """Drive all writes on; whether this one is done, which UCX knows from an answer of the peer after the bytes.

        Raises:
            MoverError: It broke off, and nobody knows how much of it is on its way.
        """
        try:
            return self._is_done(self._opened().getXferStatus(request))
        except Exception as error:
            raise MoverError(f"the write broke off: {error!r}") from error

    def release(self, request: int) -> None:
        """Drop a request that is done."""
        self._opened().releaseXferReq(request)

    def destroy(self) -> bool:
        """Close the connection and free everything; whether that has happened."""
        self._agent = None
        return self._last_reference() is None

    def _opened(self) -> NixlAgentHandle:
        assert self._agent is not None, "a destroyed agent is used"
        return self._agent

    def _is_done(self, status: object) -> bool:
        if status == self._bindings.NIXL_SUCCESS:
            return True
        if status == self._bindings.NIXL_IN_PROG:
            return False
        raise MoverError(f"status {status}")


def _descriptors(runs: Runs, side: int, address: int) -> Descriptors:
    descriptors = np.zeros((len(runs), 3), dtype=np.uint64)
    descriptors[:, 0] = runs[:, side] + address
    descriptors[:, 1] = runs[:, NUM_BYTES]
    return descriptors
