"""Messages in the making, for APIs that send a message in pieces.

What the model wrote in one go comes back as several blocks or items: what it thought, what it said, its calls. The
template has to show them as one message again, so that the tokens are those that the model wrote and the prefix cache
finds them.

| comes | joins the open message of the assistant |
|---|---|
| reasoning | unless it has text or calls: those come after reasoning |
| text | unless it has calls: those come last |
| a call | always |
"""

from dataclasses import dataclass, field

from lineclear.gateway.conversation import Message, PastToolCall


@dataclass(slots=True)
class _OpenMessage:
    """A message of the assistant that may still grow; lists, because it may be put together of very many pieces."""

    reasoning: list[str] = field(default_factory=list[str])
    texts: list[str] = field(default_factory=list[str])
    calls: list[PastToolCall] = field(default_factory=list[PastToolCall])

    def close(self) -> Message:
        return Message(
            role="assistant",
            content="".join(self.texts),
            reasoning="".join(self.reasoning) or None,
            tool_calls=tuple(self.calls),
        )


class Turns:
    """The messages so far; at most the last is open."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._open: _OpenMessage | None = None

    def add(self, message: Message) -> None:
        """A complete message of anybody."""
        self.close()
        self._messages.append(message)

    def open(self) -> None:
        """A message of the assistant begins, whatever comes before."""
        self._begin()

    def close(self) -> None:
        """The open message is complete."""
        if self._open is not None:
            self._messages.append(self._open.close())
            self._open = None

    def add_reasoning(self, text: str) -> None:
        """A piece of what the assistant thought."""
        if self._open is None or self._open.texts or self._open.calls:
            self._open = self._begin()
        self._open.reasoning.append(text)

    def add_text(self, text: str) -> None:
        """A piece of what the assistant said."""
        if self._open is None or self._open.calls:
            self._open = self._begin()
        self._open.texts.append(text)

    def add_whole_text(self, text: str) -> None:
        """All that the assistant said in one message: what was thought before it belongs to it, what was said not."""
        if self._open is not None and self._open.texts:
            self.close()
        self.add_text(text)

    def add_call(self, call: PastToolCall) -> None:
        """A call that the assistant made."""
        if self._open is None:
            self._open = self._begin()
        self._open.calls.append(call)

    def messages(self) -> tuple[Message, ...]:
        """All of them."""
        self.close()
        return tuple(self._messages)

    def _begin(self) -> _OpenMessage:
        self.close()
        self._open = _OpenMessage()
        return self._open
