"""The ASGI application: which path is served by what."""

from typing import NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lineclear.gateway.codecs.chat import ChatCodec
from lineclear.gateway.codecs.completions import CompletionCodec
from lineclear.gateway.codecs.messages import MessagesCodec
from lineclear.gateway.codecs.responses import ResponsesCodec
from lineclear.gateway.middleware import ApiKeyMiddleware, ErrorMiddleware, OptionsMiddleware, RequestIdMiddleware
from lineclear.gateway.pages import Pages
from lineclear.gateway.quarantine import QuarantinePages
from lineclear.gateway.serving import GenerationEndpoint, Services


class Endpoint:
    """An ASGI application out of a function, so that the router hands it the connection itself."""

    def __init__(self, serve: ASGIApp) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._serve(scope, receive, send)


def build_app(services: Services, api_keys: tuple[str, ...]) -> Starlette:
    """The application of one gateway."""
    pages = Pages(services)
    quarantine = QuarantinePages(services, has_api_keys=bool(api_keys))
    return Starlette(
        routes=[
            _get("/", pages.health),
            _get("/health", pages.health),
            _get("/livez", pages.health),
            _get("/ready", pages.ready),
            _get("/readyz", pages.ready),
            _get("/metrics", pages.metrics),
            _get("/invariants", pages.invariants),
            _get("/guard/recent", pages.recent_verdicts),
            _get("/quarantine", quarantine.show),
            _post("/quarantine/release", quarantine.release),
            _get("/v1/models", pages.models),
            _get("/v1/models/{model:path}", pages.one_model),
            _post("/tokenize", pages.tokenize),
            _post("/detokenize", pages.detokenize),
            _post("/v1/chat/completions", GenerationEndpoint(ChatCodec(), services)),
            _post("/v1/messages", GenerationEndpoint(MessagesCodec(), services)),
            _post("/v1/messages/count_tokens", pages.count_tokens),
            _post("/v1/responses", GenerationEndpoint(ResponsesCodec(), services)),
            _post("/v1/completions", GenerationEndpoint(CompletionCodec(), services)),
        ],
        middleware=[
            Middleware(RequestIdMiddleware),
            Middleware(ErrorMiddleware),
            Middleware(OptionsMiddleware),
            Middleware(ApiKeyMiddleware, api_keys=api_keys),
        ],
        exception_handlers={HTTPException: _leave_to_middleware},
    )


def _get(path: str, serve: ASGIApp) -> Route:
    return Route(path, Endpoint(serve), methods=["GET"])


def _post(path: str, serve: ASGIApp) -> Route:
    return Route(path, Endpoint(serve), methods=["POST"])


async def _leave_to_middleware(_request: Request, error: Exception) -> NoReturn:
    raise error
