"""Asks a quiet server for what each request gets alone: one after the other, with the rivals of each token.

What was asked once is kept in a file, if there is one, so a run that was interrupted goes on.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from lineclear.base.errors import ConfigError, LineclearError
from lineclear.lab.results import api_path

NUM_RIVALS = 5
"""What OpenAI's completions give at most."""

DROPPED = ("stream", "stream_options", "logprobs", "top_logprobs", "user", "metadata")
"""What does not change an answer's tokens, or is asked otherwise here."""


PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Before a request is asked again that the server could not take just then."""

BUSY = frozenset({408, 425, 429})
"""What says no more of a request than a server's own failure does."""


class NoReferenceError(LineclearError):
    """The server cannot say what a request alone gets: nothing is known, neither good nor bad."""


class References(Protocol):
    """Knows what a request alone is answered."""

    def body(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The whole answer, as JSON; None if the server refuses the request alone, too."""
        ...


class _Kept(msgspec.Struct):
    key: str
    body: dict[str, Any] | None


class ServerReferences:
    """References of a server.

    Args:
        client: of the server, which serves nobody else meanwhile.
        path: keeps what was answered; None: nothing is kept.
        on_asked: called after each request that was really asked.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        client: httpx.Client,
        path: Path | None = None,
        on_asked: Callable[[], None] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._path = path
        self._on_asked = on_asked
        self._pause = pause
        self._known: dict[str, dict[str, Any] | None] = {}
        if path is not None and path.exists():
            self._read(path)

    def body(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Ask, unless it is known; ask again for a while if the server is busy or fails.

        Raises:
            httpx.TransportError: The server is not there.
            NoReferenceError: It is busy, or fails, all the time.
        """
        asked = _alone(request)
        key = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()
        if key not in self._known:
            response = self._ask(asked)
            self._keep(key, response.json() if response.is_success else None)
            if self._on_asked is not None:
                self._on_asked()
        return self._known[key]

    def _ask(self, asked: dict[str, Any]) -> httpx.Response:
        """Post until the answer is one to this request."""
        pauses = iter(PAUSES_SECONDS)
        while True:
            response = self._client.post(api_path(asked), json=asked)
            if response.status_code < 500 and response.status_code not in BUSY:
                return response
            pause_seconds = next(pauses, None)
            if pause_seconds is None:
                raise NoReferenceError(
                    f"{self._client.base_url} answers with status {response.status_code} to a request that is alone; "
                    "it has to be ready, and quiet"
                )
            self._pause(pause_seconds)

    def _keep(self, key: str, body: dict[str, Any] | None) -> None:
        self._known[key] = body
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(_Kept(key, body)) + b"\n")

    def _read(self, path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                kept = msgspec.json.decode(line, type=_Kept)
            except msgspec.MsgspecError as error:
                if number == len(lines) and not line.endswith(b"\n"):  # the end of a run that was killed
                    path.write_bytes(b"".join(lines[:-1]))
                    return
                raise ConfigError(f"{path} line {number}", line[:80].decode(errors="replace"), str(error)) from None
            self._known[kept.key] = kept.body


def _alone(request: dict[str, Any]) -> dict[str, Any]:
    asked = {name: value for name, value in request.items() if name not in DROPPED}
    if "messages" in asked:
        return asked | {"logprobs": True, "top_logprobs": NUM_RIVALS}
    return asked | {"logprobs": NUM_RIVALS}
