import pytest

from lineclear.base.errors import ConfigError
from lineclear.transport.endpoint import MAX_UNIX_PATH_LEN, TcpEndpoint, UnixEndpoint, parse_endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        UnixEndpoint("/run/a b"),
        UnixEndpoint("x" * MAX_UNIX_PATH_LEN),
        TcpEndpoint("127.0.0.1", 0),
        TcpEndpoint("::1", 65_535),
    ],
)
def test_an_endpoint_is_read_as_it_is_printed(endpoint: UnixEndpoint | TcpEndpoint) -> None:
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix:",
        "unix:" + "x" * (MAX_UNIX_PATH_LEN + 1),
        "tcp:1",
        "tcp::1",
        "tcp:host:65536",
        "tcp:host:x",
        "udp:a:1",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        parse_endpoint(text)
