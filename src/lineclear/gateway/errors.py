"""Errors as clients see them: an HTTP status, OpenAI's envelope (`envelopes` has the other), when to try again.

ApiError
├── InvalidRequestError         400  the request's own mistake: field, value, what is allowed
│   └── PromptTooLongError      400  code context_length_exceeded
├── UnauthorizedError           401
├── ForbiddenError              403
├── NotFoundError               404
├── MethodNotAllowedError       405
├── BodyTooLargeError           413
├── UnsupportedEncodingError    415
├── OverloadedError             429  with Retry-After
├── UnavailableError            503  with Retry-After: draining, or no worker
└── GenerationError             500  the worker failed, or was lost after text had been sent
"""

from typing import Any

from lineclear.base.errors import LineclearError, RequestError


class ApiError(LineclearError):
    """An error that ends a request.

    Args:
        message: for people; starts with the field, where there is one.
        param: the field, or `None`.
        code: for programs, or `None`.
    """

    status = 500
    error_type = "server_error"
    retry_after_seconds: int | None = None

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def envelope(self) -> dict[str, Any]:
        """The body of the answer in OpenAI's words."""
        return {
            "error": {"message": self.message, "type": self.error_type, "param": self.param, "code": self.code},
        }


class InvalidRequestError(ApiError):
    """The request asks for something impossible."""

    status = 400
    error_type = "invalid_request_error"


class PromptTooLongError(InvalidRequestError):
    """The prompt leaves no room for an answer.

    Args:
        num_tokens: tokens of the prompt.
        max_tokens: the longest prompt that is served.
        param: the field that holds the prompt.
        is_floor: it may have more tokens than that.
    """

    def __init__(self, num_tokens: int, max_tokens: int, param: str, *, is_floor: bool = False) -> None:
        # Coding agents recognise these words, and then shorten the conversation instead of giving up.
        message = (
            f"prompt is too long: {'at least ' if is_floor else ''}{num_tokens} tokens > {max_tokens} maximum. "
            f"This model's maximum context length is {max_tokens + 1} tokens, the answer included."
        )
        super().__init__(message, param, "context_length_exceeded")


class UnauthorizedError(ApiError):
    """The API key is missing or wrong."""

    status = 401
    error_type = "authentication_error"


class ForbiddenError(ApiError):
    """Nobody may do this from there."""

    status = 403
    error_type = "permission_error"


class NotFoundError(ApiError):
    """No such path, or no such model."""

    status = 404
    error_type = "invalid_request_error"


class MethodNotAllowedError(ApiError):
    """The path exists, the method does not."""

    status = 405
    error_type = "invalid_request_error"


class BodyTooLargeError(ApiError):
    """The body has more bytes than are accepted."""

    status = 413
    error_type = "invalid_request_error"


class UnsupportedEncodingError(ApiError):
    """The body is compressed."""

    status = 415
    error_type = "invalid_request_error"


class OverloadedError(ApiError):
    """Everything that may wait is waiting.

    Args:
        message: for people.
        param: the field, or `None`.
        code: for programs, or `None`.
        retry_after_seconds: when to try again.
    """

    status = 429
    error_type = "rate_limit_error"

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, retry_after_seconds: int = 2
    ) -> None:
        super().__init__(message, param, code)
        self.retry_after_seconds = retry_after_seconds


class UnavailableError(ApiError):
    """No worker serves, or the server is draining."""

    status = 503
    error_type = "server_error"
    retry_after_seconds = 5


class GenerationError(ApiError):
    """The worker could not finish what it had accepted."""


def refuse(field: str, value: object, allowed: str, code: str = "invalid_value") -> InvalidRequestError:
    """The error for a field whose value is not allowed."""
    return invalid_request(RequestError(field, value, allowed, code))


def invalid_request(error: RequestError) -> InvalidRequestError:
    """A refused request as clients see it."""
    return InvalidRequestError(str(error), error.field, error.code)
