"""What the benchmark and rank 0 of an instance say to each other, over a pipe."""

from dataclasses import dataclass

from lineclear.config.components import ServeConfig
from lineclear.worker.seat import Seat


@dataclass(frozen=True, slots=True)
class RankStart:
    """What a rank's process is started with."""

    config: ServeConfig
    seat: Seat
    span_path: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Rank 0 can be asked."""

    num_tokens: int
    """That its store has room for."""
    kv_bytes: int
    """Of its own store: some rank's is as large as the budget, another's may be smaller."""
    staging_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Rank 0 cannot go on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt to compute all but the last token of, as for a decode worker."""

    token_ids: tuple[int, ...]
    digests: bool
    """Whether `Digests` follow the answer."""


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step of a prompt: its chunk [start, end), and when, by `time.perf_counter_ns`."""

    start: int
    end: int
    started_ns: int
    ended_ns: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended_ns - self.started_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a prompt."""

    num_hit_tokens: int
    seconds: float
    """From its arrival at the engine until all of it could be sent."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Digests:
    """Of the whole blocks of a prompt, as rank 0 stores them."""

    by_part: dict[str, str]
    """By "layer part"."""


@dataclass(frozen=True, slots=True)
class Leave:
    """There is nothing more to ask."""
