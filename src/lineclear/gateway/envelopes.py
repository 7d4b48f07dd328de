"""Errors in the words of the API that was called.

| called | envelope |
|---|---|
| `/v1/messages` and below | Anthropic's |
| `/v1/chat/completions`, `/v1/completions`, `/v1/responses` | OpenAI's |
| anything else with the header `anthropic-version`: `/v1/models`, above all | Anthropic's |
| anything else | OpenAI's |

Source: Anthropic API reference, "Errors"; OpenAI API reference, "Error codes".
"""

from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from lineclear.gateway.errors import ApiError

REQUEST_ID_KEY = "lineclear.request_id"
"""Where endpoints find the id of a request in their scope."""

_MESSAGES = "/v1/messages"
_OPENAI_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})

OVERLOADED = "overloaded_error"

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: OVERLOADED,
}


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the client of this request is one of Anthropic's API."""
    path: str = scope["path"]
    if path == _MESSAGES or path.startswith(f"{_MESSAGES}/"):
        return True
    return path not in _OPENAI_PATHS and "anthropic-version" in Headers(scope=scope)


def envelope(error: ApiError, scope: Scope) -> dict[str, Any]:
    """The body of an answer that is an error."""
    return anthropic_envelope(error, scope[REQUEST_ID_KEY]) if speaks_anthropic(scope) else error.envelope()


def anthropic_envelope(error: ApiError, request_id: str) -> dict[str, Any]:
    """The same for a client of Anthropic's API."""
    return _anthropic(_ANTHROPIC_TYPES.get(error.status, "api_error"), error, request_id)


def anthropic_event(error: ApiError, request_id: str) -> dict[str, Any]:
    """What a stream says that could not be completed, where the same request would be served now.

    In that place clients ask again after this type of error alone: after `api_error` some end their session.
    """
    return _anthropic(OVERLOADED, error, request_id)


def _anthropic(kind: str, error: ApiError, request_id: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id}
