"""The `calibrated` detector: a sequential test against the baselines of this model.

Collapse: a CUSUM over verifies of the log-likelihood ratio of acceptance, broken against healthy, by position. It falls
back to 0 whenever the sequence looks healthy, so it may begin to break at any time. A verify is one look-up.

Loop: the output's end repeats itself for longer than healthy output does, nothing like it stands in the prompt, and
its drafts are accepted at least as well as usual. So the copy of a file is none, however well its drafts fare.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final

from lineclear.guard.baselines import LOOP_CHECK_TOKENS, MIN_LOOP_TOKENS, ModeBaselines, llr_table
from lineclear.guard.evidence import MAX_PERIOD, Finding, Verify, occurs_before, repeated_end
from lineclear.protocol.verdicts import VerdictKind

_WINDOW: Final = 32
_PERIODS: Final = range(1, MAX_PERIOD + 1)


class CalibratedModel:
    """What all sequences of one sampling mode share."""

    def __init__(self, baselines: ModeBaselines) -> None:
        self.table: Final[Sequence[Sequence[float]]] = llr_table(baselines.accept_by_position)
        self.threshold: Final = baselines.threshold
        self.loop_tokens: Final = baselines.loop_tokens
        expected, reach = 0.0, 1.0
        for share in baselines.accept_by_position:
            reach *= share
            expected += reach
        self.accept_rate: Final = expected / len(baselines.accept_by_position)
        """Of a healthy sequence, over all positions."""


class CalibratedDetector:
    """One sequence."""

    def __init__(self, model: CalibratedModel) -> None:
        self._model = model
        self._cusum = 0.0
        self._recent: deque[tuple[int, int]] = deque(maxlen=_WINDOW)
        self._next_look = MIN_LOOP_TOKENS
        self._found: set[VerdictKind] = set()

    @property
    def level(self) -> float:
        """The CUSUM in thresholds."""
        return self._cusum / self._model.threshold

    def judge(self, verify: Verify, tokens: "array[int]", num_prompt_tokens: int) -> Finding | None:
        """Take in one verify; see `Detector`."""
        num_proposed, num_accepted, num_tokens = verify
        if num_proposed:
            self._recent.append((num_proposed, num_accepted))
            level = self._cusum + self._model.table[num_proposed][num_accepted]
            self._cusum = level = max(0.0, level)
            if level > self._model.threshold and "collapse" not in self._found:
                self._found.add("collapse")
                return Finding("collapse", {"cusum": level, "threshold": self._model.threshold, **self._acceptance()})
        if num_tokens < self._next_look or "loop" in self._found:
            return None
        self._next_look = num_tokens + LOOP_CHECK_TOKENS
        return self._look_for_loop(tokens, num_prompt_tokens)

    def _look_for_loop(self, tokens: "array[int]", num_prompt_tokens: int) -> Finding | None:
        least = self._model.loop_tokens
        run = repeated_end(tokens, num_prompt_tokens, _PERIODS, least)
        if not run.length:
            return None
        acceptance = self._acceptance()
        if acceptance["accept_rate"] < self._model.accept_rate:
            return None
        if occurs_before(tokens, num_prompt_tokens, tokens[len(tokens) - least :]):
            return None
        self._found.add("loop")
        return Finding("loop", {"period": float(run.period), "repeated_tokens": float(run.length), **acceptance})

    def _acceptance(self) -> dict[str, float]:
        num_proposed = sum(proposed for proposed, _ in self._recent)
        num_accepted = sum(accepted for _, accepted in self._recent)
        return {
            "accept_length": 1.0 + num_accepted / max(1, len(self._recent)),
            "accept_rate": num_accepted / max(1, num_proposed),
        }
