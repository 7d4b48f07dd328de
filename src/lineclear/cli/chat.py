"""`lineclear chat`: a conversation in the terminal with a running server, with the speed of each answer."""

import argparse
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import assert_never

import httpx
from rich.console import Console
from rich.markup import escape

from lineclear.base.errors import PeerError
from lineclear.cli.argument_types import count, finite_number
from lineclear.cli.chat_stream import (
    ChatEvent,
    Ending,
    Figures,
    ServerFailure,
    Text,
    Thinking,
    ToolCall,
    chat_body,
    read_events,
)
from lineclear.cli.client import add_server_arguments, open_client, read_error, unreachable

TIMEOUT = httpx.Timeout(600.0, connect=5.0)
"""A long prompt may take minutes before its first token."""

HELP = "/reset forgets the conversation, /exit leaves (so does Ctrl-D); Ctrl-C stops an answer."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the server is, and how it shall answer."""
    add_server_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="System message.")
    parser.add_argument("--temperature", type=finite_number, metavar="X", help="Default: the server's.")
    parser.add_argument(
        "--max-tokens", type=count, metavar="N", help="Tokens of an answer at most. Default: the server's."
    )


def run(arguments: argparse.Namespace) -> int:
    """Chat until the person leaves."""
    console = Console(highlight=False)
    with open_client(arguments, TIMEOUT) as client:
        model = _find_model(client)
        address = str(client.base_url).rstrip("/")
        console.print(f"[bold]{escape(model)}[/] at {escape(address)}. {HELP}")
        options = {
            name: value for name in ("temperature", "max_tokens") if (value := getattr(arguments, name)) is not None
        }
        conversation = Conversation(_readable(arguments.system or ""))
        _converse(console, conversation, lambda: _ask(client, chat_body(model, conversation.messages, options)))
    return 0


@dataclass
class Conversation:
    """What was said so far, as the API wants it."""

    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str) -> None:
        """The person says something."""
        self.messages.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """The model answered; a question without any answer is taken back."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        else:
            self.messages.pop()


def _find_model(client: httpx.Client) -> str:
    """The name of the server's model.

    Raises:
        ConfigError: There is no server, or it does not let us in.
    """
    try:
        response = client.get("/v1/models")
    except httpx.TransportError as error:
        raise unreachable(client, error) from None
    if response.is_error:
        raise PeerError(f"{client.base_url}: {read_error(response.content, response.status_code)}")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, KeyError, TypeError, IndexError):
        raise PeerError("the server does not say which model it serves") from None


def _ask(client: httpx.Client, body: dict[str, object]) -> Generator[ChatEvent]:
    """The events of one answer; closing the iterator closes the connection, which cancels the request."""
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                yield ServerFailure(read_error(response.read(), response.status_code))
                return
            yield from read_events(response.iter_lines())
    except httpx.TransportError as error:
        yield ServerFailure(f"the connection was lost: {error}")


def _converse(console: Console, conversation: Conversation, ask: Callable[[], Generator[ChatEvent]]) -> None:
    while (line := _read_line(console)) is not None:
        match line.strip():
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/reset":
                conversation.reset()
                console.print("[dim]forgotten[/]")
            case "/help":
                console.print(HELP)
            case text:
                conversation.ask(text)
                with closing(ask()) as events:
                    conversation.answer(Answer(console).show(events))


def _read_line(console: Console) -> str | None:
    """The next line; `None` at the end of the input or at a Ctrl-C."""
    try:
        return _readable(console.input("[bold]> [/]"))
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None


def _readable(text: str) -> str:
    """The text with replacements for bytes that are no characters: they come in as surrogates, and JSON has none."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


class Answer:
    """Shows one answer as it comes, then its figures."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._now = now
        self._text = ""
        self._started = now()
        self._first_piece: float | None = None

    def show(self, events: Iterator[ChatEvent]) -> str:
        """Show everything and return the answer's text; a Ctrl-C keeps what has come."""
        try:
            for event in events:
                self._show_event(event)
        except KeyboardInterrupt:
            self._console.print("\n[dim]stopped[/]")
        return self._text

    def _show_event(self, event: ChatEvent) -> None:
        match event:
            case Text(text):
                self._text += text
                self._show_piece(text)
            case Thinking(text) | ToolCall(text):
                self._show_piece(text, style="dim")
            case Ending(finish_reason):
                ending = "" if finish_reason == "stop" else f" [dim]({escape(finish_reason)})[/]"
                self._console.print(ending)
            case Figures():
                self._console.print(f"[dim]{self._describe(event)}[/]", soft_wrap=True)
            case ServerFailure(message):
                if self._first_piece is not None:
                    self._console.print()
                self._console.print(f"[red]{escape(message)}[/]")
            case _:
                assert_never(event)

    def _show_piece(self, text: str, style: str | None = None) -> None:
        if self._first_piece is None:
            self._first_piece = self._now()
        self._console.print(text, style=style, end="", markup=False, soft_wrap=True)

    def _describe(self, figures: Figures) -> str:
        parts = [f"{figures.num_completion_tokens} tokens"]
        if self._first_piece is not None:
            seconds = max(self._now() - self._first_piece, 1e-6)
            if figures.num_completion_tokens > 1:
                parts.append(f"{(figures.num_completion_tokens - 1) / seconds:.1f} tokens/s")
            parts.append(f"first after {self._first_piece - self._started:.2f} s")
        if figures.accept_length is not None:
            parts.append(f"accept_length {figures.accept_length:.2f}")
        parts.append(f"prompt {figures.num_prompt_tokens}, cached {figures.num_cached_tokens}")
        return " · ".join(parts)
