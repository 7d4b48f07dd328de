"""An accepted request between the dispatcher, which feeds it, and the one reader of its events."""

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from lineclear.gateway.errors import ApiError
from lineclear.gateway.generation import GenerationRequest
from lineclear.gateway.mailbox import Mailbox
from lineclear.protocol.wire import SequenceOutput


@dataclass(frozen=True, slots=True)
class Output:
    """A worker's output for a choice."""

    choice_idx: int
    output: SequenceOutput


@dataclass(frozen=True, slots=True)
class Restarted:
    """Forget every output: the request begins again."""


@dataclass(frozen=True, slots=True)
class Failed:
    """There will be no more outputs."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client closed its connection."""


GenerationEvent: TypeAlias = Output | Restarted | Failed | ClientGone


class Generation:
    """One request in the hands of the dispatcher, and what the reader of its outputs holds.

    `events` is read by one reader. `mark_delivered` says that the client has been sent something that cannot be taken
    back.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.events: Mailbox[GenerationEvent] = Mailbox()
        self.sequence_ids: set[int] = set()
        self.num_attempts = 0
        self.is_delivered = False
        self.is_closed = False
        self.give_up: asyncio.TimerHandle | None = None

    def mark_delivered(self) -> None:
        """From now on a lost worker is a failure."""
        self.is_delivered = True
