"""Sessions of an agent that come back in random order, so that a small device pool cannot keep them.

A session's prompt grows by a turn each time, until it is long enough and begins anew. What the model answers is not fed
back: a wrong token then shows in one request and does not change what is asked later.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lineclear.bundled import checkpoint_path
from lineclear.bundled.corpus import load_corpus
from lineclear.gateway.tokenization import load_tokenization

LONGEST_TURN = 40


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts of one run, in the order in which they are asked."""

    prompts: tuple[tuple[int, ...], ...]
    working_set_tokens: int
    """Tokens of all sessions together, on average."""


def make_workload(seed: int, *, num_requests: int, num_sessions: int, start_len: int, max_len: int) -> Workload:
    """Draw prompts of `start_len` to `max_len` tokens from the held-out corpus."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    tokens = _corpus_tokens()
    sessions = [_Session(rng, tokens, start_len, max_len) for _ in range(num_sessions)]
    prompts = [rng.choice(sessions).ask() for _ in range(num_requests)]
    return Workload(tuple(prompts), num_sessions * (start_len + max_len) // 2)


class _Session:
    def __init__(self, rng: random.Random, tokens: Sequence[int], start_len: int, max_len: int) -> None:
        self._rng = rng
        self._tokens = tokens
        self._start_len = start_len
        self._max_len = max_len
        self._prompt = self._take(start_len)

    def ask(self) -> tuple[int, ...]:
        """The next prompt."""
        if len(self._prompt) + LONGEST_TURN > self._max_len:
            self._prompt = self._take(self._start_len)
        else:
            self._prompt += self._take(self._rng.randint(1, LONGEST_TURN))
        return tuple(self._prompt)

    def _take(self, count: int) -> list[int]:
        start = self._rng.randrange(len(self._tokens) - count)
        return list(self._tokens[start : start + count])


def _corpus_tokens() -> list[int]:
    tokenization = load_tokenization(checkpoint_path())
    return [id_ for text in load_corpus().held_out for id_ in tokenization.encode_text(text)]
