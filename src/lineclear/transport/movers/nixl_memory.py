"""Memory that other hosts write into through NIXL, and the fence of its writers.

Each admitted writer gets a *door* of its own: the memory's pages at a second address, and an agent that serves nothing
but this address. The key names every door, and a writer uses its own.

Fence (R9), of living and of dead writers, in two steps:

1. The agent is destroyed: its progress thread is joined and its sockets are closed. From then on nothing of this
   writer is answered, so no write can be DONE whose bytes came too late.
2. The door's address is taken off the pages (`pages.Alias`). Over TCP it is this process that puts bytes in place, by
   that address, so whatever of UCX might still run here changes only pages that nobody reads. This is the proof, and
   the kernel's: it does not lean on what UCX does when it is closed.

Neither is a deregistration, which over TCP protects nothing: a write with the old metadata lands and is DONE (measured,
nixl-cu13 1.5.1). Nor is an address used for anything else later.

The writers are processes of Lineclear and trusted to use their own door; UCX's sockets ask nobody who they are.
"""

import secrets

import msgspec

from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.nixl_agent import NixlAgent
from lineclear.transport.movers.nixl_bindings import NixlBindings
from lineclear.transport.movers.pages import Alias, Pages
from lineclear.transport.movers.process_life import ProcessLife, own_life


class NixlIdentity(msgspec.Struct, frozen=True, tag="nixl writer", forbid_unknown_fields=True):
    """A writer, by a name that no other has."""

    name: bytes


class Door(msgspec.Struct, frozen=True):
    """Where one writer reaches the memory."""

    address: int
    metadata: bytes


class NixlKey(msgspec.Struct, frozen=True, tag="nixl", forbid_unknown_fields=True):
    """A memory by a name that no other has, its process, and the doors of the writers admitted so far, by name."""

    life: ProcessLife
    name: bytes
    num_bytes: int
    doors: dict[bytes, Door]


_encoder = msgspec.msgpack.Encoder()
_key_decoder = msgspec.msgpack.Decoder(NixlKey)
_identity_decoder = msgspec.msgpack.Decoder(NixlIdentity)


def decode_key(key: bytes) -> NixlKey:
    """Read a memory's key.

    Raises:
        MoverError: It is none.
    """
    try:
        return _key_decoder.decode(key)
    except msgspec.MsgspecError as error:
        raise MoverError(f"no key of a nixl memory: {error}") from error


def encode_identity(name: bytes) -> bytes:
    """Return the identity of the writer with that name."""
    return _encoder.encode(NixlIdentity(name))


class NixlMemory:
    """Pages with a door for each writer."""

    def __init__(self, bindings: NixlBindings, num_bytes: int) -> None:
        """Make the memory.

        Raises:
            MoverError: The system refuses it.
        """
        self._bindings = bindings
        self._life = own_life()
        self._name = secrets.token_bytes(16)
        self._pages = Pages(num_bytes)
        self._admissions: dict[bytes, NixlAdmission] = {}

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
        """Where each admitted writer finds the memory.

        Units: about 100 bytes, and 250 to 400 for each writer that is admitted and not fenced.
        """
        doors = {name: each.door for name, each in self._admissions.items() if not each.is_shut}
        return _encoder.encode(NixlKey(self._life, self._name, self.num_bytes, doors))

    def admit(self, identity: bytes) -> "NixlAdmission":
        """Open a door for a writer.

        Cost: 15 to 30 ms.

        Raises:
            MoverError: That is no identity, this life of a writer has been admitted before, or NIXL cannot.
        """
        try:
            name = _identity_decoder.decode(identity).name
        except msgspec.MsgspecError as error:
            raise MoverError(f"no identity of a nixl writer: {error}") from error
        if name in self._admissions:
            raise MoverError("this life of a writer has been admitted before")
        admission = self._admissions[name] = NixlAdmission(self._bindings, self._pages)
        return admission

    def close(self) -> None:
        """Shut all doors; the pages go with the last view of the buffer."""
        for admission in self._admissions.values():
            admission.close()
        self._pages.close()


class NixlAdmission:
    """One writer's door."""

    def __init__(self, bindings: NixlBindings, pages: Pages) -> None:
        """Open it.

        Raises:
            MoverError: NIXL or the system cannot.
        """
        self._alias = Alias(pages)
        self._is_fenced = False
        self.is_shut = False
        """Whether no writer is to use it any more."""
        try:
            self._agent = NixlAgent(bindings, self._alias.address, pages.num_bytes, serves=True)
        except MoverError:
            self._alias.detach()
            raise
        self.door = Door(self._alias.address, self._agent.metadata())

    def fence(self) -> bool:
        """Cut the writer off; whether that is proven. 10 to 30 ms the first time."""
        self.is_shut = True
        if not self._is_fenced and self._agent.destroy():
            self._alias.detach()
            self._is_fenced = True
        return self._is_fenced

    def close(self) -> None:
        """Shut the door."""
        self.fence()
