"""One streamed completion over one connection, told apart by moments. httptools, as thousands are open at once."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httptools
import msgspec

from lineclear.base.errors import ConfigError

_READ_BYTES = 65_536


class Usage(msgspec.Struct):
    """Tokens as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, int | None] | None = None


class _Choice(msgspec.Struct):
    text: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


@dataclass(frozen=True)
class Server:
    """Where requests go."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None
    api_key: str | None

    def head(self, body_bytes: int) -> bytes:
        """The head of a request with so long a body."""
        lines = [
            f"POST {self.path}/completions HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            "Connection: close",
            f"Content-Length: {body_bytes}",
        ]
        if self.api_key is not None:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


def parse_server(url: str, api_key: str | None) -> Server:
    """The server at `url`, `/v1` added where it has no path.

    Raises:
        ConfigError: It is no http or https URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, port = SplitResult("", "", "", "", ""), 0
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("against", url, "a URL such as http://127.0.0.1:8000")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Server(parts.hostname, port, parts.path.rstrip("/") or "/v1", tls, api_key)


class Answer:
    """What has come of one stream so far. A parser's callbacks fill it.

    Units: moments in seconds of the clock that is passed in.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""
        self.first_token_s: float | None = None
        self.num_pieces = 0
        self.usage: Usage | None = None
        self.error: str | None = None
        self.is_done = False
        self.is_complete = False

    @property
    def status(self) -> int:
        """The HTTP status; 0 before there is one."""
        return self._parser.get_status_code()

    def feed(self, data: bytes) -> None:
        """Bytes as they come."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self.error = self.error or f"not a stream of completions: {error}"
            self.is_complete = True

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        return self.is_done or self.is_complete

    def end_of_connection(self) -> None:
        """The server closed the connection before the answer was over."""
        if self.status not in (0, 200):
            self.on_message_complete()
        self.error = self.error or "the connection ended within the answer"

    def on_body(self, data: bytes) -> None:
        """The parser's: a part of the body."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self.status != 200:
            self._rest = data
            return
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def on_message_complete(self) -> None:
        """The parser's: the body is whole."""
        if self.status != 200:
            self.error = f"HTTP {self.status}: {self._rest[:200].decode('utf-8', 'replace')}"
        self.is_complete = True

    def _event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self.is_done = True
            return
        chunk = _CHUNK.decode(payload)
        if chunk.error is not None:
            self.error = f"error in the stream: {str(chunk.error)[:200]}"
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.choices:
            self.num_pieces += 1
            if self.first_token_s is None:
                self.first_token_s = self._clock()


async def ask(
    server: Server, body: bytes, answer: Answer, on_sent: Callable[[], None], max_pieces: int | None = None
) -> None:
    """Send the request and read its answer to the end; leave after `max_pieces` of it, as a client that cancels.

    Raises:
        OSError: There is no connection, or it broke.
    """
    reader, writer = await asyncio.open_connection(server.host, server.port, ssl=server.tls)
    try:
        writer.write(server.head(len(body)) + body)
        on_sent()
        while not answer.is_over and not (max_pieces is not None and answer.num_pieces >= max_pieces):
            data = await reader.read(_READ_BYTES)
            if not data:
                answer.end_of_connection()
                return
            answer.feed(data)
        if answer.is_complete and not answer.is_done:
            answer.error = answer.error or "the stream ended without [DONE]"
    finally:
        writer.close()
