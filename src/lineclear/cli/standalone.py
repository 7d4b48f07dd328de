"""What a gateway or a worker needs that is started alone, without a supervisor."""

import signal
import socket
from collections.abc import Sequence
from types import FrameType
from typing import Self

from lineclear.base.errors import ConfigError
from lineclear.engine.bell import Bell
from lineclear.transport.endpoint import TcpEndpoint, parse_endpoint


def control_endpoint(flag: str, text: str | None) -> TcpEndpoint:
    """Read HOST:PORT.

    Raises:
        ConfigError: The text is no address, or was not given.
    """
    try:
        endpoint = parse_endpoint(f"tcp:{text}")
    except ConfigError:
        raise ConfigError(flag, text, "HOST:PORT") from None
    assert isinstance(endpoint, TcpEndpoint)
    return endpoint


def address_towards(endpoint: TcpEndpoint) -> str:
    """The address of this machine that packets to an endpoint would come from. Sends nothing.

    Raises:
        ConfigError: There is no way there.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        allowed = f"an address that can be reached ({error})"
        raise ConfigError("join", f"{endpoint.host}:{endpoint.port}", allowed) from error


class Stop:
    """A stop signal as something that a loop can wait for. A second signal ends the process at once."""

    def __init__(self, signals: Sequence[int]) -> None:
        self._signals = signals
        self._bell = Bell()
        self.is_set = False

    def __enter__(self) -> Self:
        for number in self._signals:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._signals:
            signal.signal(number, signal.SIG_DFL)
        self._bell.close()

    def fileno(self) -> int:
        """Readable from the first signal on."""
        return self._bell.fileno()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True
        self._bell.ring()
        for number in self._signals:
            signal.signal(number, signal.SIG_DFL)
