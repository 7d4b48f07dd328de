"""One HTTP connection: uvicorn's protocol, and what it leaves out when a client sends requests ahead of the answers.

A request that is sent while an earlier one is answered waits for its turn. The server tells only the newest request
that the connection is lost, and stops reading, so that it does not even notice. Here all are told, and reading goes on
for a few requests.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lineclear.gateway.errors import InvalidRequestError
from lineclear.gateway.sse import encode_json

MAX_AHEAD = 8
"""Requests on one connection for which reading goes on, 64 KB of body each; with more, it goes on after an answer."""


class Connection(HttpToolsProtocol):
    """A connection whose requests all learn that it is lost."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the server's own
        super().__init__(*args, **kwargs)
        self._open: list[RequestResponseCycle] = []

    def on_headers_complete(self) -> None:
        """A request begins."""
        super().on_headers_complete()
        self._open = [cycle for cycle in self._open if not cycle.response_complete]
        if self.cycle is not None and self.cycle not in self._open:  # pyright: ignore[reportUnnecessaryComparison]
            self._open.append(self.cycle)
        if len(self._open) <= MAX_AHEAD:
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client, or the server, has closed the connection."""
        for cycle in self._open:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; in the middle of an answer, only close."""
        if any(not cycle.response_complete for cycle in self._open):
            self.transport.close()
            return
        body = encode_json(InvalidRequestError(f"this is no HTTP request: {msg}", None, "invalid_http").envelope())
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()
