"""What surrounds every endpoint: a request id, the API key, and errors in one shape."""

import hashlib
import hmac
import logging
import re
import traceback
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lineclear.gateway.envelopes import REQUEST_ID_KEY
from lineclear.gateway.errors import ApiError, MethodNotAllowedError, NotFoundError, UnauthorizedError
from lineclear.gateway.http import ClientDisconnectedError, send_error

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
ANTHROPIC_REQUEST_ID_HEADER = "request-id"

_REQUEST_ID = re.compile(r"[!-~]{1,128}")

OPEN_PATHS = frozenset({"/", "/health", "/livez", "/ready", "/readyz", "/metrics"})
"""What probes and scrapers read without a key. None of it says anything about anybody's text."""


class RequestIdMiddleware:
    """Puts an id on every answer: the client's own if it sent a sane one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = sent if _REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = headers[ANTHROPIC_REQUEST_ID_HEADER] = request_id
            await send(message)

        await self._app({**scope, REQUEST_ID_KEY: request_id}, receive, send_with_id)


class ErrorMiddleware:
    """Turns every error into the called API's envelope, or into a cut connection once an answer has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        has_begun = False

        async def send_watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        except ClientDisconnectedError:
            return
        except Exception as error:  # noqa: BLE001 - the last place that can still answer
            if not has_begun:
                headers = error.headers if isinstance(error, HTTPException) else None
                await send_error(send, scope, _as_api_error(error), headers)
            elif not isinstance(error, ApiError):
                _log_internal(error)


class OptionsMiddleware:
    """Answers preflights: there is nothing to negotiate, and nobody else's pages are let in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "OPTIONS":
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", b"GET, HEAD, POST, OPTIONS")]})
        await send({"type": "http.response.body", "body": b""})


class ApiKeyMiddleware:
    """Lets only those in who have one of the keys.

    Args:
        app: what is guarded.
        api_keys: the keys; without any, everybody is served.
    """

    def __init__(self, app: ASGIApp, api_keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            UnauthorizedError: The key is missing or wrong.
        """
        if scope["type"] == "http" and self._digests and scope["path"] not in OPEN_PATHS:
            self._check(Headers(scope=scope))
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = [headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
        # All are compared, and each in constant time: the time tells nothing about any of them.
        matches = [hmac.compare_digest(_digest(key), digest) for key in sent for digest in self._digests]
        if not any(matches):
            allowed = "`Authorization: Bearer KEY` or `x-api-key: KEY`"
            message = f"authorization: the API key is missing or wrong; send it as {allowed}"
            raise UnauthorizedError(message, None, "invalid_api_key")


def _digest(key: str) -> bytes:
    """Keys are compared by digests, which are of one length."""
    return hashlib.sha256(key.encode()).digest()


def _as_api_error(error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case HTTPException(status_code=404):
            return NotFoundError("no such path", None, "not_found")
        case HTTPException(status_code=405):
            return MethodNotAllowedError("the path does not know this method", None, "method_not_allowed")
        case _:
            _log_internal(error)
            return ApiError("internal error; the server's log has the details", None, "internal_error")


def _log_internal(error: Exception) -> None:
    """Log where an error came from, without its message: that may quote somebody's text."""
    frames = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    logger.error("%s while serving a request\n%s", type(error).__name__, frames)
