"""Replays a trace in an open loop: each request is sent at its time, however long others take.

Times to tokens count from the moment at which a request was due, so that a replay that falls behind shows it twice: in
`schedule_error`, and in what its users would have waited.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from lineclear.base.errors import ConfigError
from lineclear.evaluation.figures import Figure
from lineclear.lab.streams import Answer, Server, ask
from lineclear.trace.events import Cancelled
from lineclear.trace.prompts import PromptBuilder
from lineclear.trace.requests import TracedRequest
from lineclear.trace.statistics import percentile

_INTERRUPTED = "the replay was interrupted"

_AHEAD_S = 1.0
"""Bodies are made so long before they are due, so that making them delays no sending."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one request.

    Units: seconds since the replay's start; tokens.
    """

    request: str
    due_s: float
    sent_s: float | None
    first_token_s: float | None
    ended_s: float
    prompt_len: int
    output_len: int
    cached_len: int
    is_cancelled: bool
    error: str | None

    @property
    def is_served(self) -> bool:
        """Whether a whole answer came."""
        return self.error is None and not self.is_cancelled and self.first_token_s is not None


@dataclass(frozen=True)
class Goal:
    """Served well is who has a first token and each further one in time.

    Units: milliseconds.
    """

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True)
class ReplayPlan:
    """What is replayed, by rising arrival.

    Args:
        speed: seconds of the trace in one of the replay.
        first_s: the replay's time 0, in seconds of the trace; a run that is gone on with keeps that of its first.
    """

    requests: Sequence[TracedRequest]
    prompts: PromptBuilder
    model: str
    speed: float
    first_s: float

    def due_s(self, request: TracedRequest) -> float:
        """When a request is due, in seconds of the replay."""
        return (request.arrived.at_s - self.first_s) / self.speed


async def replay(plan: ReplayPlan, server: Server, on_outcome: Callable[[Outcome], None]) -> None:
    """Send all requests; each has one outcome, also when the replay is cancelled: then those that were sent have."""
    if not plan.requests:
        return
    start = time.monotonic() + _AHEAD_S - plan.due_s(plan.requests[0])

    def clock() -> float:
        return time.monotonic() - start

    async with asyncio.TaskGroup() as group:
        for request in plan.requests:
            due_s = plan.due_s(request)
            await asyncio.sleep(max(0.0, due_s - _AHEAD_S - clock()))
            group.create_task(_one(request, due_s, _body(plan, request), server, clock, on_outcome))


async def _one(
    request: TracedRequest,
    due_s: float,
    body: bytes,
    server: Server,
    clock: Callable[[], float],
    on_outcome: Callable[[Outcome], None],
) -> None:
    answer, sent_s = Answer(clock), list[float]()
    max_pieces = max(1, request.output_len) if isinstance(request.end, Cancelled) else None
    await asyncio.sleep(due_s - clock())
    error: str | None = _INTERRUPTED
    try:
        await ask(server, body, answer, lambda: sent_s.append(clock()), max_pieces)
        error = answer.error
    except OSError as failure:
        error = f"no answer: {failure}"
    finally:
        usage = answer.usage
        details = None if usage is None else usage.prompt_tokens_details
        on_outcome(
            Outcome(
                request=request.arrived.request,
                due_s=due_s,
                sent_s=sent_s[0] if sent_s else None,
                first_token_s=answer.first_token_s,
                ended_s=clock(),
                prompt_len=request.arrived.prompt_len if usage is None else usage.prompt_tokens,
                output_len=answer.num_pieces if usage is None else usage.completion_tokens,
                cached_len=(details or {}).get("cached_tokens") or 0,
                is_cancelled=max_pieces is not None and error is None and not answer.is_over,
                error=error,
            )
        )


def _body(plan: ReplayPlan, request: TracedRequest) -> bytes:
    sampling = msgspec.to_builtins(request.arrived.sampling)
    return msgspec.json.encode(
        {
            "model": plan.model,
            "prompt": plan.prompts.tokens(request.arrived),
            "max_tokens": max(1, request.output_len),
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
    )


class OutcomeFile:
    """Outcomes, one a line, written as they come; what a run before has written is not asked again.

    Args:
        path: the file; a last line that was cut is dropped.
        requests: ids of those that are replayed.

    Raises:
        ConfigError: The file holds anything but outcomes of these.
    """

    def __init__(self, path: Path, requests: Container[str]) -> None:
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        try:
            self.outcomes = [msgspec.json.decode(line, type=Outcome) for line in whole.splitlines()]
        except msgspec.DecodeError as error:
            raise ConfigError("out", str(path), f"a new file, or outcomes of a replay ({error})") from error
        foreign = next((each.request for each in self.outcomes if each.request not in requests), None)
        if foreign is not None:
            raise ConfigError("out", str(path), f"outcomes of the same requests; {foreign!r} is not replayed here")
        path.write_bytes(whole + b"\n" if whole else b"")
        self._file = path.open("ab")

    def add(self, outcome: Outcome) -> None:
        """Keep it; an interrupted one only in memory, so that the next run asks it."""
        self.outcomes.append(outcome)
        if outcome.error != _INTERRUPTED:
            self._file.write(msgspec.json.encode(outcome) + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def replay_figures(outcomes: Sequence[Outcome], goal: Goal) -> Iterator[Figure]:
    """Figures of a replay; percentiles by nearest rank."""
    served = [each for each in outcomes if each.is_served]
    yield Figure("requests", len(outcomes))
    yield Figure("served", len(served))
    yield Figure("cancelled", sum(each.is_cancelled for each in outcomes))
    yield Figure("errors", sum(each.error is not None for each in outcomes))
    yield from _percentiles(
        "schedule_error", [each.sent_s - each.due_s for each in outcomes if each.sent_s is not None]
    )
    yield from _percentiles("ttft", [_ttft_s(each) for each in served])
    yield from _percentiles("tpot", [_tpot_s(each) for each in served if each.output_len > 1])
    yield from _percentiles("end_to_end", [each.ended_s - each.due_s for each in served])
    span_s = max((each.ended_s for each in outcomes), default=0.0)
    good = sum(1000 * _ttft_s(each) <= goal.ttft_ms and 1000 * _tpot_s(each) <= goal.tpot_ms for each in served)
    yield Figure("goodput", good / span_s if span_s > 0 else 0.0, "requests/s")
    num_prompt = sum(each.prompt_len for each in served)
    yield Figure("prompt_tokens", num_prompt, "tokens")
    yield Figure("output_tokens", sum(each.output_len for each in served), "tokens")
    yield Figure("hit_rate", sum(each.cached_len for each in served) / num_prompt if num_prompt else 0.0)


def _ttft_s(outcome: Outcome) -> float:
    assert outcome.first_token_s is not None
    return outcome.first_token_s - outcome.due_s


def _tpot_s(outcome: Outcome) -> float:
    assert outcome.first_token_s is not None
    return (outcome.ended_s - outcome.first_token_s) / max(1, outcome.output_len - 1)


def _percentiles(name: str, seconds: Sequence[float]) -> Iterator[Figure]:
    if seconds:
        for share, label in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
            yield Figure(f"{name}_{label}", 1000 * percentile(seconds, share), "ms")


def run_replay(plan: ReplayPlan, server: Server, on_outcome: Callable[[Outcome], None]) -> bool:
    """Replay in an event loop of its own; whether it came to its end, or Ctrl-C ended it."""
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(replay(plan, server, on_outcome))
        return True
    return False
