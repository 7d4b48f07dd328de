"""One streamed chat completion as events, read from a server's SSE lines."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from lineclear.base.errors import PeerError

DATA_PREFIX = "data: "
ERROR_PREFIX = ": error "
"""Lineclear says in a comment why it cuts a stream; other servers say it as data."""
DONE = "[DONE]"


@dataclass(frozen=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A piece of a tool call: its name, or some of its arguments."""

    text: str


@dataclass(frozen=True)
class Ending:
    """Why the answer ended."""

    finish_reason: str


@dataclass(frozen=True)
class Figures:
    """What the answer took. `accept_length` is `None` where the server does not tell, or nothing was drafted."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    accept_length: float | None


@dataclass(frozen=True)
class ServerFailure:
    """The server gave up in the middle of the answer."""

    message: str


ChatEvent: TypeAlias = Text | Thinking | ToolCall | Ending | Figures | ServerFailure


def chat_body(model: str, messages: list[dict[str, str]], options: Mapping[str, float]) -> dict[str, Any]:
    """The request for a streamed answer with its figures; `options` are sampling options as the API names them."""
    return {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "lineclear": {"draft_figures": True},
        **options,
    }


def read_events(lines: Iterable[str]) -> Iterator[ChatEvent]:
    """Read the events of one answer from the lines of the response, to its end or to a failure.

    Raises:
        PeerError: This is no stream of chat completion chunks.
    """
    for line in lines:
        if not line.startswith((DATA_PREFIX, ERROR_PREFIX)):
            continue
        data = line.removeprefix(ERROR_PREFIX).removeprefix(DATA_PREFIX)
        if data == DONE:
            return
        for event in _read_chunk(data):
            yield event
            if isinstance(event, ServerFailure):
                return


def _read_chunk(data: str) -> Iterator[ChatEvent]:
    try:
        chunk = cast("dict[str, Any]", json.loads(data))
        if "error" in chunk:
            yield ServerFailure(str(chunk["error"]["message"]))
            return
        for choice in chunk["choices"]:
            yield from _read_choice(choice)
        if chunk.get("usage"):
            yield _read_figures(chunk)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise PeerError(f"the server sends no chat completion chunks: {error!r}") from None


def _read_choice(choice: Mapping[str, Any]) -> Iterator[ChatEvent]:
    delta = choice["delta"]
    if thinking := delta.get("reasoning_content"):
        yield Thinking(thinking)
    if text := delta.get("content"):
        yield Text(text)
    for call in delta.get("tool_calls") or ():
        function = call["function"]
        yield ToolCall(f"{function.get('name') or ''}{function.get('arguments') or ''}")
    if choice.get("finish_reason"):
        yield Ending(choice["finish_reason"])


def _read_figures(chunk: Mapping[str, Any]) -> Figures:
    usage = chunk["usage"]
    drafts = (chunk.get("lineclear") or {}).get("draft_figures")
    details = usage.get("prompt_tokens_details") or {}
    return Figures(
        num_prompt_tokens=usage["prompt_tokens"],
        num_cached_tokens=details.get("cached_tokens") or 0,
        num_completion_tokens=usage["completion_tokens"],
        accept_length=drafts[0]["accept_length"] if drafts and drafts[0]["num_verifies"] else None,
    )
