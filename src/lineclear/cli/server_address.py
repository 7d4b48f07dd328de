"""The address of a running server, however a person spells it."""

import httpx

from lineclear.base.errors import ConfigError

ALLOWED = "http://HOST:PORT or https://HOST:PORT of a running server, with or without /v1"


def read_server_address(url: str) -> str:
    """The server's address without `/v1` and slashes at its end: what the APIs' paths are put behind.

    Raises:
        ConfigError: This is no such address.
    """
    try:
        parsed = httpx.URL(url.strip())
    except httpx.InvalidURL as error:
        raise ConfigError("url", url, f"{ALLOWED} ({error})") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host or not 0 < (parsed.port or 80) < 65_536:
        raise ConfigError("url", url, ALLOWED)
    if parsed.query or parsed.fragment:
        raise ConfigError("url", url, f"{ALLOWED}; no query, no fragment")
    path = parsed.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return str(parsed.copy_with(path=path or "/")).rstrip("/")
