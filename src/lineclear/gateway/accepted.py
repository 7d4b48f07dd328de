"""An accepted request between the dispatcher, which feeds it, and the one reader of its events."""

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from lineclear.gateway.errors import ApiError
from lineclear.gateway.generation import GenerationRequest
from lineclear.gateway.guard_book import ChoiceHistory
from lineclear.gateway.mailbox import Mailbox
from lineclear.protocol.sampling import SamplingParams
from lineclear.protocol.wire import SequenceOutput


@dataclass(frozen=True, slots=True)
class Output:
    """A worker's output for a choice."""

    choice_idx: int
    output: SequenceOutput


@dataclass(frozen=True, slots=True)
class Broken:
    """A worker stopped a choice's sequence by a verdict; `output` is what it said last."""

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


GenerationEvent: TypeAlias = Output | Broken | Restarted | Failed | ClientGone


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What a worker is asked for one choice. Attempts of one request begin together where they can.

    Args:
        choice_idx: the choice's.
        prompt_token_ids: of the choice, with what the client has of the answer already.
        sampling: for what is still to come.
        use_cache: whether cached KV may be read.
        guard: whether the guard may stop it.
        avoid_workers: that it is not to go to, if it can be helped.
        avoid_prefill: prefill instances that are not to compute its prompt.
    """

    choice_idx: int
    prompt_token_ids: list[int]
    sampling: SamplingParams
    use_cache: bool = True
    guard: bool = True
    avoid_workers: frozenset[str] = frozenset()
    avoid_prefill: frozenset[str] = frozenset()


class Generation:
    """One request in the hands of the dispatcher, and what the reader of its outputs holds.

    `events` is read by one reader. `mark_delivered` says that the client has been sent something that cannot be taken
    back. `num_attempts` counts by choice, and so do `histories`; `accepted_at` is in seconds of the dispatcher's clock.
    """

    def __init__(self, request: GenerationRequest, accepted_at: float = 0.0) -> None:
        self.accepted_at = accepted_at
        self.histories = [ChoiceHistory() for _ in request.choices]
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

    def next_attempt(self, choice_idx: int, sent_token_ids: list[int], *, is_last: bool) -> Attempt:
        """What is asked after a choice was broken: it continues what the client has, elsewhere and without caches."""
        choice, history = self.request.choices[choice_idx], self.histories[choice_idx]
        num_sent = len(sent_token_ids)
        sampling = msgspec.structs.replace(
            choice.sampling,
            max_tokens=max(1, choice.sampling.max_tokens - num_sent),
            min_tokens=max(0, choice.sampling.min_tokens - num_sent),
        )
        return Attempt(
            choice_idx=choice_idx,
            prompt_token_ids=[*choice.prompt_token_ids, *sent_token_ids] if num_sent else choice.prompt_token_ids,
            sampling=sampling if num_sent else choice.sampling,
            use_cache=False,
            guard=not is_last,
            avoid_workers=history.avoid_workers,
            avoid_prefill=history.avoid_prefill,
        )

    def mark_delivered(self) -> None:
        """From now on a lost worker is a failure."""
        self.is_delivered = True
