"""Addresses of control links: `unix:PATH` on one host, `tcp:HOST:PORT` across hosts (port 0 picks a free one)."""

from dataclasses import dataclass
from typing import TypeAlias

from lineclear.base.errors import ConfigError

MAX_UNIX_PATH_LEN = 100
"""Socket paths end at 107 bytes on Linux and at 103 on macOS, the terminator included."""


@dataclass(frozen=True)
class UnixEndpoint:
    """A socket in the file system; who may enter its folder may connect."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True)
class TcpEndpoint:
    """A TCP address. There is no authentication: keep it on loopback or a private network."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:{self.host}:{self.port}"


Endpoint: TypeAlias = UnixEndpoint | TcpEndpoint


def parse_endpoint(text: str) -> Endpoint:
    """Read an endpoint as its `str` prints it.

    Raises:
        ConfigError: The text is no endpoint.
    """
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and 0 < len(rest.encode()) <= MAX_UNIX_PATH_LEN:
        return UnixEndpoint(rest)
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isascii() and port.isdigit() and int(port) <= 65_535:
        return TcpEndpoint(host, int(port))
    allowed = f"unix:PATH of at most {MAX_UNIX_PATH_LEN} bytes, or tcp:HOST:PORT"
    raise ConfigError("endpoint", text, allowed)
