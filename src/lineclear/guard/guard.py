"""The guard of one worker: a detector for each sequence, verdicts of what they find, and the drift over all of them.

Driven by the scheduler: `open` when a sequence is queued, `judge` at each verify, `close` at its end.

Invariants:
    1. A sequence gets at most one verdict of a kind, and none after one that ends it.
    2. A sequence that may not be ended gets verdicts whose action is observe, and no others.
"""

from array import array
from collections.abc import Collection
from typing import Final

from lineclear.guard.baselines import Baselines, ModeBaselines
from lineclear.guard.calibrated import CalibratedDetector, CalibratedModel
from lineclear.guard.evidence import Detector, Finding, Verify
from lineclear.guard.seed import SeedDetector
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.verdicts import Verdict, VerdictAction, VerdictKind
from lineclear.protocol.wire import GuardStatistics

DRIFT_SEQUENCES: Final = 256
"""Over how many sequences drift is averaged: the weight of one falls to 1/e in so many."""

DRIFT_LIMIT: Final = 0.1
"""So far from the baseline, in shares of accepted drafts, acceptance over all requests is an alarm."""

MIN_DRIFT_DRAFTS: Final = 512
"""Below so many drafts at a position nothing is said about it."""


class Guard:
    """Judges the sequences of one worker.

    Args:
        action: what a verdict does.
        baselines: for the calibrated detector; without them limits are those of the seed detector.
    """

    def __init__(self, action: VerdictAction, baselines: Baselines | None) -> None:
        self._action: Final = action
        self._models = (
            None
            if baselines is None
            else {True: CalibratedModel(baselines.greedy), False: CalibratedModel(baselines.sampled)}
        )
        self._drift = None if baselines is None else Drift(baselines)
        self._verdicts: dict[VerdictKind, dict[VerdictAction, int]] = {}
        self._num_sequences = 0
        self._num_tokens = 0
        self._num_forgotten_blocks = 0

    @property
    def detector(self) -> str:
        """Its name."""
        return "seed" if self._models is None else "calibrated"

    def open(self, *, is_greedy: bool) -> Detector:
        """Return the judge of one new sequence."""
        return SeedDetector() if self._models is None else CalibratedDetector(self._models[is_greedy])

    def judge(
        self, detector: Detector, verify: Verify, tokens: "array[int]", num_prompt_tokens: int, *, may_end: bool
    ) -> Verdict | None:
        """Take in one verify of a sequence; `may_end` is false where its verdicts only observe."""
        self._num_tokens += verify.num_accepted + 1
        finding = detector.judge(verify, tokens, num_prompt_tokens)
        return None if finding is None else self._verdict(finding, verify.num_tokens, may_end=may_end)

    def note_forgotten(self, num_blocks: int) -> None:
        """So many blocks were forgotten for a verdict."""
        self._num_forgotten_blocks += num_blocks

    def close(self, counts: DraftCounts, *, is_greedy: bool) -> None:
        """Take in the account of a sequence that has ended after at least one verify."""
        self._num_sequences += 1
        if self._drift is not None:
            self._drift.note(counts, is_greedy=is_greedy)

    def statistics(self, running: Collection[Detector]) -> GuardStatistics:
        """Return the totals, and the state of what runs."""
        return GuardStatistics(
            num_judged_sequences=self._num_sequences,
            num_judged_tokens=self._num_tokens,
            num_forgotten_blocks=self._num_forgotten_blocks,
            num_verdicts={kind: dict(counts) for kind, counts in self._verdicts.items()},
            drift_by_position=[] if self._drift is None else self._drift.levels(),
            highest_cusum=max((each.level for each in running), default=0.0),
        )

    def _verdict(self, finding: Finding, num_tokens: int, *, may_end: bool) -> Verdict:
        action = self._action if may_end else "observe"
        counts = self._verdicts.setdefault(finding.kind, {})
        counts[action] = counts.get(action, 0) + 1
        return Verdict(
            kind=finding.kind, detector=self.detector, action=action, num_tokens=num_tokens, evidence=finding.evidence
        )


class Drift:
    """How far acceptance has gone from the baselines over the latest requests, whatever each of them was."""

    def __init__(self, baselines: Baselines) -> None:
        self._modes: dict[bool, ModeBaselines] = {True: baselines.greedy, False: baselines.sampled}
        num_positions = baselines.draft_tokens
        self._reached = [0.0] * num_positions
        self._excess = [0.0] * num_positions

    def note(self, counts: DraftCounts, *, is_greedy: bool) -> None:
        """Take in one sequence's account."""
        keep = 1.0 - 1.0 / DRIFT_SEQUENCES
        expected = self._modes[is_greedy].accept_by_position
        before = counts.num_verifies
        pairs = zip(counts.proposed_by_position, counts.accepted_by_position, expected, strict=False)
        for position, (num_proposed, num_accepted, share) in enumerate(pairs):
            num_reached = min(num_proposed, before)
            self._reached[position] = keep * self._reached[position] + num_reached
            self._excess[position] = keep * self._excess[position] + num_accepted - share * num_reached
            before = num_accepted

    def levels(self) -> list[float]:
        """By position: below -1 acceptance has collapsed, above 1 it is suspiciously good."""
        return [
            excess / reached / DRIFT_LIMIT if reached >= MIN_DRIFT_DRAFTS else 0.0
            for reached, excess in zip(self._reached, self._excess, strict=True)
        ]
