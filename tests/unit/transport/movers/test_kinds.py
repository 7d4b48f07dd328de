import importlib

import pytest

from lineclear.transport.movers.kinds import open_mover
from lineclear.transport.movers.mover import MoverError


def test_without_nixl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", not_there)
    monkeypatch.setenv("UCX_TLS", "tcp")
    with pytest.raises(MoverError, match=r"pip install 'lineclear\[nixl\]'"):
        open_mover("nixl")


@pytest.mark.parametrize("transports", ["all", "tcp,cma", "rc,tcp"])
def test_a_transport_on_which_nobody_can_be_cut_off_is_refused(
    monkeypatch: pytest.MonkeyPatch, transports: str
) -> None:
    monkeypatch.setenv("UCX_TLS", transports)
    with pytest.raises(MoverError, match=f"UCX_TLS is '{transports}'"):
        open_mover("nixl")
