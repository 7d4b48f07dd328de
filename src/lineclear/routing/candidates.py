"""What a choice is made of: who asks, who might serve, and who is chosen."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """What is to be placed.

    Args:
        num_sequences: that go to one worker together, since they share a prompt.
        num_prompt_tokens: of one of them, the longest.
        names: the names of its prompt's pieces; none where caches are not read.
        session_key: of the session that it belongs to; empty: none.
        avoid_workers: that it is not to go to if any other has room.
        avoid_prefill: prefill instances that it is not to be computed by if there is any other.
    """

    num_sequences: int = 1
    num_prompt_tokens: int = 1
    names: tuple[bytes, ...] = ()
    session_key: str = ""
    avoid_workers: frozenset[str] = frozenset()
    avoid_prefill: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A worker that owns requests.

    Args:
        worker_id: its name.
        num_sequences: that it has.
        num_running: that it runs at once; more wait.
        num_free: that it may still be given.
        num_pending_tokens: of prompts that it was given and has not answered yet.
        num_cached_tokens: of the prompt that is to be placed, as estimated.
        is_admitted: whether its breaker lets a sequence begin.
        weight: the part of its ordinary load that it is to get, above 0, at most 1.
    """

    worker_id: str
    num_sequences: int
    num_running: int
    num_free: int
    num_pending_tokens: int = 0
    num_cached_tokens: int = 0
    is_admitted: bool = True
    weight: float = 1.0

    @property
    def load(self) -> float:
        """Its sequences as a part of what it runs at once; more than 1: some wait. Slow starters seem fuller."""
        return self.num_sequences / (self.num_running * self.weight)

    def load_with(self, num_sequences: int) -> float:
        """The load if it were given so many more."""
        return (self.num_sequences + num_sequences) / (self.num_running * self.weight)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """A prefill instance; its fields are those of a `Candidate`."""

    prefill_id: str
    num_pending_tokens: int = 0
    num_cached_tokens: int = 0
    is_admitted: bool = True
    weight: float = 1.0


class Why(Enum):
    """What decided a choice."""

    SESSION = "session"
    PREFIX = "prefix"
    LOAD = "load"
    TURN = "turn"
    """It was the next one's turn."""
    FORCED = "forced"
    """Every worker with room is one that is not to be trusted, or was to be avoided."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The pair that is chosen.

    `prefill_id` is a wish, empty where there is none; `avoid_prefill` are the instances that the decode worker is to
    leave alone if it can.
    """

    worker_id: str
    prefill_id: str
    avoid_prefill: tuple[str, ...]
    why: Why
