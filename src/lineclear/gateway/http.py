"""The little HTTP that is the same for every endpoint: request bodies in, JSON out, on plain ASGI.

Plain ASGI, because a stream must be able to end without its last chunk: an application that returns before it said
`more_body: False` has its connection cut by the server, which is the only honest end of an answer that cannot be
completed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Self

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from lineclear.gateway.envelopes import envelope
from lineclear.gateway.errors import ApiError, BodyTooLargeError, UnsupportedEncodingError
from lineclear.gateway.sse import encode_json

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class ClientDisconnectedError(Exception):
    """The client left before its request was complete."""


async def read_chunks(scope: Scope, receive: Receive, max_body_bytes: int) -> AsyncIterator[bytes]:
    """The body of a request as it arrives.

    Raises:
        BodyTooLargeError: It has more bytes than are allowed.
        UnsupportedEncodingError: It is compressed.
        ClientDisconnectedError: The client left in the middle of it.
    """
    headers = Headers(scope=scope)
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise UnsupportedEncodingError(f"content-encoding: got {encoding!r}, allowed: identity", "content-encoding")
    announced = headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > max_body_bytes:
        raise _too_large(announced, max_body_bytes)
    num_bytes = 0
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        has_more = message.get("more_body", False)
        if num_bytes > max_body_bytes:
            raise _too_large(f"more than {max_body_bytes}", max_body_bytes)
        yield chunk


def _too_large(num_bytes: str, max_body_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"body: got {num_bytes} bytes, allowed: at most {max_body_bytes}", None, "body_too_large")


class ClientWatch:
    """Notices that the client leaves, from the end of its request's body on.

    Use as a context manager around the work on the answer.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._on_gone: Callable[[], None] | None = None
        self._is_gone = False

    def raise_if_gone(self) -> None:
        """Stop work that nobody waits for.

        Raises:
            ClientDisconnectedError: The client has left.
        """
        if self._is_gone:
            raise ClientDisconnectedError

    def call_when_gone(self, on_gone: Callable[[], None]) -> None:
        """Call this once the client has left, at once if it already has."""
        self._on_gone = on_gone
        if self._is_gone:
            on_gone()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        if self._on_gone is not None:
            self._on_gone()


async def send_body(
    send: Send, body: bytes, *, status: int = 200, content_type: str = JSON, headers: Mapping[str, str] | None = None
) -> None:
    """Send an answer in one piece."""
    lengths = {"content-type": content_type, "content-length": str(len(body))}
    await send(_start(status, lengths | dict(headers or {})))
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, scope: Scope, error: ApiError, headers: Mapping[str, str] | None = None) -> None:
    """Send an error as the answer to a request."""
    extra = dict(headers or {})
    if error.retry_after_seconds is not None:
        extra["retry-after"] = str(error.retry_after_seconds)
    await send_body(send, encode_json(envelope(error, scope)), status=error.status, headers=extra)


class EventStream:
    """A stream of events to one client. It is complete only after `finish`."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def begin(self, first: bytes) -> None:
        """Send the headers and the first events."""
        headers = {"content-type": EVENT_STREAM, "cache-control": "no-cache", "x-accel-buffering": "no"}
        await self._send(_start(200, headers))
        await self.write(first)

    async def write(self, data: bytes) -> None:
        """Send events, if there are any."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes) -> None:
        """Send the last events and end the stream."""
        await self._send({"type": "http.response.body", "body": data})


def _start(status: int, headers: Mapping[str, str]) -> Message:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": encoded}
