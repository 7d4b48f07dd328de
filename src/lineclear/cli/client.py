"""What the commands share that talk to a running server: where it is, the key, and what it refuses."""

import argparse
import json
import os

import httpx

from lineclear.base.errors import ConfigError
from lineclear.cli.server_address import read_server_address
from lineclear.config.resolve import definitions_by_name

DEFAULT_URL = "http://127.0.0.1:8000"
API_KEY_VARIABLE = "LINECLEAR_API_KEY"


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the server is, and how to be let in."""
    parser.add_argument("--url", default=DEFAULT_URL, help=f"Address of the server. Default: {DEFAULT_URL}.")
    parser.add_argument("--api-key", metavar="TEXT", help=f"Key of the server; also {API_KEY_VARIABLE}.")


def open_client(arguments: argparse.Namespace, timeout: httpx.Timeout) -> httpx.Client:
    """A client of the server that the arguments name.

    Raises:
        ConfigError: There can be no server at that address, or none has such a key.
    """
    return httpx.Client(
        base_url=read_server_address(arguments.url), headers=_headers(arguments.api_key), timeout=timeout
    )


def unreachable(client: httpx.Client, error: httpx.TransportError) -> ConfigError:
    """The error for a server that is not there."""
    allowed = f"the address of a running server; `lineclear serve` starts one ({error})"
    return ConfigError("url", str(client.base_url), allowed)


def read_error(body: bytes, status_code: int) -> str:
    """What a refused request was refused for, from OpenAI's envelope if it has one."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answers with status {status_code}"


def _headers(api_key: str | None) -> dict[str, str]:
    """The headers that let us in; the first of the keys where the variable has several."""
    key = api_key or os.environ.get(API_KEY_VARIABLE, "").partition(",")[0].strip()
    if not key:
        return {}
    definitions_by_name()["api_key"].check([key])
    return {"Authorization": f"Bearer {key}"}
