"""Tokens of texts that were encoded before.

An agent sends its whole conversation again with every turn. Between two control tokens lies one message, or less, and
its tokens depend on nothing else; so all but the newest messages are found here.
"""

import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass

MIN_RUN_LEN = 128
"""Shorter texts are encoded faster than they are kept."""


@dataclass(frozen=True)
class RunCacheStatistics:
    """The state, and totals since start."""

    num_runs: int
    num_characters: int
    num_hits: int
    num_misses: int


class RunCache:
    """Keeps the most recently used texts; safe to use from several threads.

    Args:
        max_characters: characters of all kept texts together.
    """

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._token_ids: OrderedDict[str, array[int]] = OrderedDict()
        self._num_characters = 0
        self._num_hits = 0
        self._num_misses = 0
        self._lock = threading.Lock()

    def find(self, run: str) -> list[int] | None:
        """The tokens of a text, if they are known."""
        if len(run) < MIN_RUN_LEN:
            return None
        with self._lock:
            token_ids = self._token_ids.get(run)
            if token_ids is None:
                self._num_misses += 1
                return None
            self._num_hits += 1
            self._token_ids.move_to_end(run)
            return token_ids.tolist()

    def keep(self, run: str, token_ids: list[int]) -> None:
        """Remember the tokens of a text."""
        if not MIN_RUN_LEN <= len(run) <= self._max_characters:
            return
        with self._lock:
            if run not in self._token_ids:
                self._num_characters += len(run)
            self._token_ids[run] = array("I", token_ids)
            self._token_ids.move_to_end(run)
            while self._num_characters > self._max_characters:
                oldest, _ = self._token_ids.popitem(last=False)
                self._num_characters -= len(oldest)

    def statistics(self) -> RunCacheStatistics:
        """The counts."""
        return RunCacheStatistics(len(self._token_ids), self._num_characters, self._num_hits, self._num_misses)
