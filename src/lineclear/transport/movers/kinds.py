"""The movers that a process can be told to use, by name."""

from typing import Literal, TypeAlias, assert_never

from lineclear.transport.movers.mover import Mover, MoverError
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
            raise MoverError("the nixl mover is not there yet")
        case _:
            assert_never(kind)
