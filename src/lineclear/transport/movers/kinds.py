"""The movers that a process can be told to use, by name."""

from typing import Literal, TypeAlias, assert_never

from lineclear.transport.movers.mover import Mover
from lineclear.transport.movers.nixl import NixlMover
from lineclear.transport.movers.shm import ShmMover

MoverKind: TypeAlias = Literal["shm", "nixl"]


def open_mover(kind: MoverKind) -> Mover:
    """Open a mover with its defaults.

    Raises:
        MoverError: It is not installed; the text says what to install.
    """
    match kind:
        case "shm":
            return ShmMover()
        case "nixl":
            return NixlMover()
        case _:
            assert_never(kind)
