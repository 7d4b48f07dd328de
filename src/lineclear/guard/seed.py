"""The `seed` detector: fixed limits on acceptance, the same for every model.

Collapse: `accept_length` below 1.4. Loop: `accept_rate` above 0.96. Both are of the last `WINDOW` verifies that had
drafts, and count only where more than `MIN_TOKENS` tokens are generated and it has been so at `PERSISTENCE` verifies in
a row.

Source: Z.ai, "Scaling Pain of Coding Agent Serving: Lessons from Debugging GLM-5 at Scale" (2026). It gives the two
limits and the 128 tokens; window and persistence are ours.
"""

from array import array
from collections import deque
from typing import Final

from lineclear.guard.evidence import Finding, Verify
from lineclear.protocol.verdicts import VerdictKind

MIN_ACCEPT_LENGTH: Final = 1.4
MAX_ACCEPT_RATE: Final = 0.96
MIN_TOKENS: Final = 128
WINDOW: Final = 32
PERSISTENCE: Final = 8


class SeedDetector:
    """One sequence under fixed limits."""

    def __init__(self) -> None:
        self._window: deque[tuple[int, int]] = deque()
        self._num_proposed = 0
        self._num_accepted = 0
        self._num_below = 0
        self._num_above = 0
        self._found: set[VerdictKind] = set()

    @property
    def level(self) -> float:
        """It has none."""
        return 0.0

    def judge(self, verify: Verify, tokens: "array[int]", num_prompt_tokens: int) -> Finding | None:  # noqa: ARG002 - acceptance is all
        """Take in one verify; see `Detector`."""
        num_proposed, num_accepted, num_tokens = verify
        if not num_proposed:
            return None
        self._window.append((num_proposed, num_accepted))
        self._num_proposed += num_proposed
        self._num_accepted += num_accepted
        if len(self._window) > WINDOW:
            proposed, accepted = self._window.popleft()
            self._num_proposed -= proposed
            self._num_accepted -= accepted
        if len(self._window) < WINDOW or num_tokens <= MIN_TOKENS:
            return None
        accept_length = 1.0 + self._num_accepted / WINDOW
        accept_rate = self._num_accepted / self._num_proposed
        self._num_below = self._num_below + 1 if accept_length < MIN_ACCEPT_LENGTH else 0
        self._num_above = self._num_above + 1 if accept_rate > MAX_ACCEPT_RATE else 0
        evidence = {"accept_length": accept_length, "accept_rate": accept_rate}
        if self._num_below >= PERSISTENCE:
            return self._find("collapse", evidence)
        return self._find("loop", evidence) if self._num_above >= PERSISTENCE else None

    def _find(self, kind: VerdictKind, evidence: dict[str, float]) -> Finding | None:
        if kind in self._found:
            return None
        self._found.add(kind)
        return Finding(kind, evidence)
