"""What the passes of one measured turn stood still for, and what owners sent, from the spans of all ranks.

A pass looks for every part that an owner sends. If the part is there, looking takes some microseconds: so a wait
counts from `SEEN_SECONDS` on. A wait has two causes that spans do not tell apart: bytes that are on their way, and an
owner that has not come so far because it computes, or because its core computes something else.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lineclear.base.errors import InvariantError
from lineclear.evaluation.layersplit.messages import Step
from lineclear.evaluation.layersplit.spans import SpansByRank, is_broadcast_wait
from lineclear.kv.layout import PartShape
from lineclear.parallel.communicator import Lane
from lineclear.parallel.meter import Happening, Span

SEEN_SECONDS: Final = 1e-4
"""Longer than it takes to see that a part is there, with a thread to be woken; shorter than a transfer of any size."""


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """One layout's turn. Bytes sent count once a broadcast, however many peers get it; bytes received at every peer."""

    step_seconds: float
    """Of the turn's engine steps, on rank 0."""
    wait_seconds: dict[str, float]
    """By lane: how long passes stood still, mean of the ranks."""
    broadcast_seconds: float
    """Owners' sending, all together."""
    received_bytes: dict[str, int]
    """By lane of the broadcasts, at all peers."""
    awaited_bytes: dict[str, int]
    """Those of them that a pass had to wait for."""
    sent_bytes: dict[str, int]
    """By "layer part"."""

    @property
    def wait_share(self) -> float:
        """Of step time: standing still for broadcasts."""
        waited = sum(self.wait_seconds[lane.value] for lane in (Lane.INDEX, Lane.LATENT))
        return waited / self.step_seconds if self.step_seconds else 0.0

    def awaited_share(self, lane: Lane | None = None) -> float:
        """Of the bytes that broadcasts brought on a lane, or on both: those that a pass had to wait for."""
        lanes = [each.value for each in ((Lane.INDEX, Lane.LATENT) if lane is None else (lane,))]
        received = sum(self.received_bytes[each] for each in lanes)
        return sum(self.awaited_bytes[each] for each in lanes) / received if received else 0.0


def measure(spans: SpansByRank, steps: Iterable[Step]) -> Communication:
    """Add up one turn."""
    waits: defaultdict[str, float] = defaultdict(float)
    received = {lane.value: 0 for lane in (Lane.INDEX, Lane.LATENT)}
    awaited = dict(received)
    sent: defaultdict[str, int] = defaultdict(int)
    broadcast_seconds = 0.0
    for of_rank in spans.values():
        for span in of_rank:
            if span.happening is Happening.WAIT:
                waits[span.part or Lane.CONTROL.value] += span.seconds / len(spans)
            elif span.happening is Happening.BROADCAST:
                sent[f"{span.layer} {span.part}"] += span.num_bytes
                broadcast_seconds += span.seconds
        for arrival, wait in _arrivals(of_rank):
            received[arrival.track] += arrival.num_bytes
            if wait.seconds > SEEN_SECONDS:
                awaited[arrival.track] += arrival.num_bytes
    return Communication(
        step_seconds=sum(step.seconds for step in steps),
        wait_seconds={lane.value: waits[lane.value] for lane in Lane},
        broadcast_seconds=broadcast_seconds,
        received_bytes=received,
        awaited_bytes=awaited,
        sent_bytes=dict(sorted(sent.items())),
    )


def batch_bytes(steps: Iterable[Step], shape: Sequence[PartShape], block_size: int, index_topk: int) -> dict[str, int]:
    """What owners have to send for steps of one sequence at a time: the blocks before each chunk, by "layer part".

    Index keys are read by chunks that reach beyond `index_topk` alone.
    """
    wanted: defaultdict[str, int] = defaultdict(int)
    for step in steps:
        num_rows = -(-step.start // block_size) * block_size
        for layer, part, row_bytes in shape:
            if num_rows and (part == "latent" or step.end > index_topk):
                wanted[f"{layer} {part}"] += num_rows * row_bytes
    return dict(sorted(wanted.items()))


def pool_bytes(num_steps: int, shape: Sequence[PartShape], num_tokens: int) -> int:
    """What they would send if each step sent whole layers of a pool with room for so many tokens."""
    return num_steps * num_tokens * sum(part.row_bytes for part in shape)


def _arrivals(of_rank: Sequence[Span]) -> list[tuple[Span, Span]]:
    """Every part that a rank got from an owner, with the wait for it.

    Both come in the order of the steps, once a step for each layer and part.
    """
    arrivals: defaultdict[tuple[int | None, str | None], list[Span]] = defaultdict(list)
    waits: defaultdict[tuple[int | None, str | None], list[Span]] = defaultdict(list)
    for span in sorted(of_rank, key=lambda each: each.started_ns):
        if span.happening is Happening.RECEIVE:
            arrivals[span.layer, span.part].append(span)
        elif is_broadcast_wait(span):
            waits[span.layer, span.part].append(span)
    pairs: list[tuple[Span, Span]] = []
    for key, of_part in arrivals.items():
        if len(of_part) != len(waits[key]):
            raise InvariantError(f"{len(of_part)} arrivals of layer {key[0]}'s {key[1]} part, {len(waits[key])} waits")
        pairs += zip(of_part, waits[key], strict=True)
    return pairs
