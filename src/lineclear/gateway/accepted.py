"""An accepted request between the dispatcher, which feeds it, and the one reader of its events."""

from dataclasses import dataclass
from typing import TypeAlias

from lineclear.gateway.errors import ApiError
from lineclear.gateway.generation import GenerationRequest
from lineclear.gateway.mailbox import Mailbox
from lineclear.protocol.sampling import SamplingParams
from lineclear.protocol.wire import SequenceOutput


@dataclass(frozen=True, slots=True)
class Output:
    """A worker's output for a choice."""

    choice_idx: int
    output: SequenceOutput


@dataclass(frozen=True, slots=True)
class Restarted:
    """Forget every output of these choices: they begin again."""

    choice_idxs: frozenset[int]


@dataclass(frozen=True, slots=True)
class Failed:
    """There will be no more outputs."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client closed its connection."""


GenerationEvent: TypeAlias = Output | Restarted | Failed | ClientGone


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a worker is asked for one choice. Attempts of one request begin together where they can."""

    choice_idx: int
    prompt_token_ids: list[int]
    sampling: SamplingParams


class Generation:
    """One request in the hands of the dispatcher, and what the reader of its outputs holds.

    `events` is read by one reader. `mark_delivered` says that the client has been sent something that cannot be taken
    back. `num_attempts` counts by choice.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.events: Mailbox[GenerationEvent] = Mailbox()
        self.sequence_ids: set[int] = set()
        self.num_attempts = [0] * len(request.choices)
        self.is_delivered = False
        self.is_closed = False

    def first_attempts(self) -> tuple[Attempt, ...]:
        """What is asked at first: every choice."""
        return tuple(
            Attempt(choice_idx=idx, prompt_token_ids=choice.prompt_token_ids, sampling=choice.sampling)
            for idx, choice in enumerate(self.request.choices)
        )

    def mark_delivered(self) -> None:
        """From now on a lost worker is a failure."""
        self.is_delivered = True
