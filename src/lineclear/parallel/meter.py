"""What a rank's passes and lanes did, and when: counted, and shown to whoever draws a timeline.

On CUDA the times of transfers and waits are those of giving them to a stream.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from lineclear.parallel.communicator import Lane

COMPUTING = "computing"
"""The thread that computes; the other tracks are lanes."""


class Happening(Enum):
    """What takes time."""

    LOAD = "load"
    """An owner's broadcast waits for its own tiers."""
    FILL = "fill"
    """An owner collects the running batch's blocks."""
    BROADCAST = "broadcast"
    """They are sent to all peers."""
    RECEIVE = "receive"
    """A peer waits for them and receives them."""
    GATHER = "gather"
    WAIT = "wait"
    """The pass stands still for a transfer: communication that is not hidden."""
    COMPUTE = "compute"


class Span(NamedTuple):
    """Something that happened, by `time.perf_counter_ns`, one clock for all processes of a machine."""

    happening: Happening
    track: str
    """A lane, or `COMPUTING`."""
    layer: int | None
    part: str | None
    """Of a wait: the lane that is waited for."""
    started_ns: int
    ended_ns: int
    num_bytes: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended_ns - self.started_ns) / 1e9


SpanSink: TypeAlias = Callable[[Span], None]
"""Called from the pass's and the lanes' threads."""


@dataclass(frozen=True, slots=True)
class CommunicationStatistics:
    """One rank's totals since the start."""

    num_broadcasts: int
    """Sent by this rank."""
    sent_bytes: Mapping[tuple[int, str], int]
    """By layer and part, of this rank's broadcasts; each goes to every peer."""
    gathered_bytes: int
    """New rows and results that this rank gave; each goes to every peer."""
    transfer_seconds: Mapping[str, float]
    """By lane: broadcasts that this rank sent, and gathers."""
    wait_seconds: Mapping[str, float]
    """By lane: how long the pass stood still for it."""
    load_wait_seconds: float
    """How long this rank's broadcasts waited for its own tiers."""


class Meter:
    """Counts spans, and passes them on.

    Args:
        sink: hears of every span; None for counts alone.
    """

    def __init__(self, sink: SpanSink | None = None) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._num_broadcasts = 0
        self._sent_bytes: defaultdict[tuple[int, str], int] = defaultdict(int)
        self._gathered_bytes = 0
        self._transfer_seconds = {lane.value: 0.0 for lane in Lane}
        self._wait_seconds = {lane.value: 0.0 for lane in Lane}
        self._load_wait_seconds = 0.0

    def __call__(self, span: Span) -> None:
        """Count it."""
        with self._lock:
            self._count(span)
        if self._sink is not None:
            self._sink(span)

    @contextmanager
    def span(
        self, happening: Happening, track: str, layer: int | None, part: str | None, num_bytes: int = 0
    ) -> Generator[None]:
        """Count what happens inside."""
        started_ns = time.perf_counter_ns()
        yield
        self(Span(happening, track, layer, part, started_ns, time.perf_counter_ns(), num_bytes))

    def statistics(self) -> CommunicationStatistics:
        """Totals since the start."""
        with self._lock:
            return CommunicationStatistics(
                self._num_broadcasts,
                dict(self._sent_bytes),
                self._gathered_bytes,
                dict(self._transfer_seconds),
                dict(self._wait_seconds),
                self._load_wait_seconds,
            )

    def _count(self, span: Span) -> None:
        match span.happening:
            case Happening.BROADCAST:
                self._num_broadcasts += 1
                self._transfer_seconds[span.track] += span.seconds
                if span.layer is not None and span.part is not None:
                    self._sent_bytes[span.layer, span.part] += span.num_bytes
            case Happening.GATHER:
                self._gathered_bytes += span.num_bytes
                self._transfer_seconds[span.track] += span.seconds
            case Happening.LOAD:
                self._load_wait_seconds += span.seconds
            case Happening.WAIT:
                self._wait_seconds[span.part or Lane.CONTROL.value] += span.seconds
            case Happening.FILL | Happening.RECEIVE | Happening.COMPUTE:
                pass
