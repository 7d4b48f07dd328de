"""What a gateway or a worker needs that is started alone, without a supervisor."""

import signal
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
