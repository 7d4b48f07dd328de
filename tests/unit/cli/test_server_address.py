import pytest

from lineclear.base.errors import ConfigError
from lineclear.cli.server_address import read_server_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        (" http://127.0.0.1:8000//v1// ", "http://127.0.0.1:8000"),
        ("HTTPS://host/proxy/v1", "https://host/proxy"),
        ("https://host/proxy/", "https://host/proxy"),
        ("http://[::1]:80/v1", "http://[::1]"),
        ("http://host:1/apiv1", "http://host:1/apiv1"),
    ],
)
def test_an_address_is_found_however_it_ends(url: str, address: str) -> None:
    assert read_server_address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "localhost:8000/v1",
        "localhost",
        "//localhost:8000",
        "ftp://localhost",
        "http://",
        "http:///v1",
        "http://localhost:port",
        "http://localhost:99999",
        "http://ho\x00st",
        "http://localhost:8000/v1?key=1",
        "http://localhost:8000/#v1",
    ],
)
def test_what_is_no_address_is_refused_with_what_is(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^url: got .*, allowed: http://HOST:PORT or https://HOST:PORT"):
        read_server_address(url)
