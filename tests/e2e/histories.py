"""What a client sees of its requests, event by event, and whether that is a history that Lineclear may show.

    sent ── tokens* ── finished ── done ── closed          ANSWERED
      │        ├────── error? ──── cut                     FAILED, clearly
      │        └────── left                                LEFT
      └── refused (a status that is no answer)             REFUSED

Whatever else comes, in whatever order, is a fault of the service. So are tokens that the reference does not begin with,
also those of requests that failed or were left in the middle.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx

PATIENCE_SECONDS = 90.0


class Kind(StrEnum):
    """What can happen to a request, as its client sees it."""

    SENT = "sent"
    TOKENS = "tokens"
    FINISHED = "finished"
    DONE = "done"
    ERROR = "error"
    CLOSED = "closed"
    """The answer's body has ended as HTTP wants it."""
    CUT = "cut"
    """The connection has ended, and the body has not."""
    REFUSED = "refused"
    LEFT = "left"


class Verdict(StrEnum):
    """What a history comes to."""

    RIGHT = "right"
    FAILED = "failed"
    REFUSED = "refused"
    LEFT = "left"
    WRONG = "wrong"
    UNCLEAR = "unclear"
    """No ending, two, or one that contradicts what came before."""


ENDINGS = {
    (Kind.FINISHED, Kind.DONE, Kind.CLOSED): Verdict.RIGHT,
    (Kind.ERROR, Kind.CUT): Verdict.FAILED,
    (Kind.CUT,): Verdict.FAILED,
    (Kind.REFUSED,): Verdict.REFUSED,
    (Kind.LEFT,): Verdict.LEFT,
}
"""All that may follow the tokens."""


@dataclass(frozen=True)
class Event:
    """One thing that happened. `detail` is for people."""

    kind: Kind
    at_seconds: float
    tokens: tuple[str, ...] = ()
    detail: str = ""


@dataclass
class History:
    """One request."""

    prompt_idx: int
    events: list[Event] = field(default_factory=list)

    def note(self, kind: Kind, tokens: Sequence[str] = (), detail: str = "") -> None:
        """Something happened now."""
        self.events.append(Event(kind, time.monotonic(), tuple(tokens), detail))

    @property
    def tokens(self) -> list[str]:
        """All that came, in order."""
        return [token for event in self.events for token in event.tokens]

    def story(self) -> str:
        """The events in words, with the seconds since the first."""
        start = self.events[0].at_seconds
        return f"prompt {self.prompt_idx}: " + ", ".join(
            f"{event.at_seconds - start:.2f} {event.kind}{f' ({event.detail})' if event.detail else ''}"
            for event in self.events
        )


def judge(history: History, expected: Sequence[str]) -> Verdict:
    """What a history comes to, the reference tokens of its prompt given."""
    kinds = [event.kind for event in history.events]
    num_tokens_events = len([kind for kind in kinds if kind is Kind.TOKENS])
    beginning = [Kind.SENT, *[Kind.TOKENS] * num_tokens_events]
    verdict = ENDINGS.get(tuple(kinds[len(beginning) :]), Verdict.UNCLEAR)
    if kinds[: len(beginning)] != beginning or (verdict is Verdict.REFUSED and num_tokens_events):
        return Verdict.UNCLEAR
    tokens = history.tokens
    is_right = tokens == list(expected) if verdict is Verdict.RIGHT else tokens == list(expected[: len(tokens)])
    return verdict if is_right else Verdict.WRONG


@dataclass(frozen=True)
class Question:
    """What all requests of a run share."""

    prompts: Sequence[list[int]]
    max_tokens: int

    def body(self, prompt_idx: int) -> dict[str, Any]:
        """The request."""
        return {
            "prompt": self.prompts[prompt_idx],
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 0,
            "stream": True,
        }


async def ask(http: httpx.AsyncClient, question: Question, prompt_idx: int, patience: float | None = None) -> History:
    """Ask one prompt and record what comes; with `patience` the client leaves after so many seconds."""
    history = History(prompt_idx)
    history.note(Kind.SENT)
    try:
        async with asyncio.timeout(patience):
            await _follow(http, question.body(prompt_idx), history)
    except TimeoutError:
        history.note(Kind.LEFT)
    return history


async def ask_many(
    url: str,
    question: Question,
    prompt_idxs: Sequence[int],
    *,
    concurrency: int,
    leaving_share: float = 0.0,
    seed: int = 0,
) -> list[History]:
    """Ask so many at once; some clients leave early."""
    limit = asyncio.Semaphore(concurrency)

    async def one(http: httpx.AsyncClient, number: int, prompt_idx: int) -> History:
        rng = random.Random(f"{seed} {number}")
        patience = rng.uniform(0.05, 1.0) if rng.random() < leaving_share else None
        async with limit:
            return await ask(http, question, prompt_idx, patience)

    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS) as http:
        return await asyncio.gather(*(one(http, number, idx) for number, idx in enumerate(prompt_idxs)))


async def _follow(http: httpx.AsyncClient, body: dict[str, Any], history: History) -> None:
    try:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                history.note(Kind.REFUSED, detail=f"{response.status_code} {(await response.aread())[:200]!r}")
                return
            async for line in response.aiter_lines():
                _note_line(line, history)
        history.note(Kind.CLOSED)
    except httpx.RemoteProtocolError as error:
        history.note(Kind.CUT, detail=str(error))
    except httpx.ReadTimeout:
        pass  # a history without an ending


def _note_line(line: str, history: History) -> None:
    if not line.startswith("data: "):
        return
    if line == "data: [DONE]":
        history.note(Kind.DONE)
        return
    chunk = json.loads(line.removeprefix("data: "))
    if "error" in chunk:
        history.note(Kind.ERROR, detail=chunk["error"]["message"])
    for choice in chunk.get("choices", ()):
        if choice["logprobs"]:
            history.note(Kind.TOKENS, choice["logprobs"]["tokens"])
        if choice["finish_reason"]:
            history.note(Kind.FINISHED, detail=choice["finish_reason"])
