import sys

import pytest

from lineclear.transport.movers.kinds import open_mover
from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.shm import ShmMover


def test_shm_is_there() -> None:
    assert isinstance(open_mover("shm"), ShmMover)


def test_without_nixl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setitem(sys.modules, "nixl_cu13._bindings", None)
    with pytest.raises(MoverError, match=r"pip install 'lineclear\[nixl\]'"):
        open_mover("nixl")


@pytest.mark.parametrize("transports", ["all", "rc,tcp", "tcp,cma", ""])
def test_nixl_over_what_cannot_be_fenced_is_refused(transports: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", transports)
    with pytest.raises(MoverError, match=f"UCX_TLS is '{transports}'"):
        open_mover("nixl")
