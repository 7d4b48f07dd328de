"""What the guard of the workers said, and what became of it: for operators, without a word of any prompt or answer.

    verdict ──▶ a record; retry or fail: what follows it, then how the choice ended

Every choice with a broken attempt has exactly one outcome:

| outcome | |
|---|---|
| recovered | another attempt ended without a verdict |
| model_own | the last attempt, elsewhere and without caches, was judged as well: the answer is returned marked |
| failed | there was no other attempt: the client was told an error |
| unfinished | the client left, or the request failed for other reasons |
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from lineclear.base.ids import RequestId
from lineclear.protocol.verdicts import Verdict, VerdictAction, VerdictKind
from lineclear.routing.retries import Decision, GiveUp, Limit

MAX_RECENT: Final = 256
"""Verdicts that are kept: the last ones, about 200 kB."""


class GuardOutcome(Enum):
    """How a choice ended that had a broken attempt."""

    RECOVERED = "recovered"
    MODEL_OWN = "model_own"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(slots=True)
class GuardRecord:
    """One verdict. `at_seconds` since the epoch; `follows`: again, again_for_the_last_time, a limit, or nothing.

    `num_sent_tokens` of the choice were with the client when the next attempt began, and are what it continued.
    """

    at_seconds: float
    request_id: RequestId
    choice_idx: int
    attempt: int
    worker_id: str
    verdict: Verdict
    follows: str = ""
    num_sent_tokens: int = 0
    outcome: GuardOutcome | None = None


@dataclass(slots=True)
class ChoiceHistory:
    """What happened to one choice so far.

    Args:
        broken: the verdicts that ended its attempts.
        observed: the verdicts on the attempt that runs or ended the choice.
        num_lost_tokens: that attempts generated in vain.
        is_settled: its outcome is counted.
    """

    broken: list[GuardRecord] = field(default_factory=list[GuardRecord])
    observed: list[GuardRecord] = field(default_factory=list[GuardRecord])
    num_lost_tokens: int = 0
    is_settled: bool = False

    @property
    def num_attempts(self) -> int:
        """Attempts, the one that runs included."""
        return len(self.broken) + 1

    @property
    def avoid_workers(self) -> frozenset[str]:
        """Workers that broke it."""
        return frozenset(record.worker_id for record in self.broken)

    @property
    def avoid_prefill(self) -> frozenset[str]:
        """Prefill instances that computed a prompt of it that was broken."""
        return frozenset(record.verdict.prefill_id for record in self.broken if record.verdict.prefill_id)


@dataclass(frozen=True)
class GuardStatistics:
    """Totals since start."""

    num_verdicts: dict[tuple[str, VerdictKind, VerdictAction], int]
    """By worker, kind and action."""
    num_retries: dict[VerdictKind, int]
    num_resumed: int
    """Retries that continued what was sent."""
    num_given_up: dict[Limit, int]
    num_outcomes: dict[tuple[VerdictKind, GuardOutcome], int]
    """Choices, by the kind of their first broken attempt."""


class GuardBook:
    """The account of all verdicts of this gateway.

    Args:
        max_recent: verdicts that are kept.
    """

    def __init__(self, max_recent: int = MAX_RECENT) -> None:
        self._recent: deque[GuardRecord] = deque(maxlen=max_recent)
        self._num_verdicts: Counter[tuple[str, VerdictKind, VerdictAction]] = Counter()
        self._num_retries: Counter[VerdictKind] = Counter()
        self._num_resumed = 0
        self._num_given_up: Counter[Limit] = Counter()
        self._num_outcomes: Counter[tuple[VerdictKind, GuardOutcome]] = Counter()

    def add(self, history: ChoiceHistory, record: GuardRecord) -> None:
        """A verdict came."""
        verdict = record.verdict
        (history.observed if verdict.action == "observe" else history.broken).append(record)
        self._recent.append(record)
        self._num_verdicts[record.worker_id, verdict.kind, verdict.action] += 1

    def follow(self, history: ChoiceHistory, decision: Decision, num_sent_tokens: int) -> None:
        """What becomes of the choice whose attempt was broken last."""
        record = history.broken[-1]
        history.observed.clear()
        if isinstance(decision, GiveUp):
            record.follows = decision.limit.value
            self._num_given_up[decision.limit] += 1
            self.settle(history, GuardOutcome.FAILED)
            return
        record.follows = "again_for_the_last_time" if decision.is_last else "again"
        record.num_sent_tokens = num_sent_tokens
        self._num_retries[record.verdict.kind] += 1
        self._num_resumed += num_sent_tokens > 0

    def finish(self, history: ChoiceHistory) -> None:
        """The choice has its ending."""
        self.settle(history, GuardOutcome.MODEL_OWN if history.observed else GuardOutcome.RECOVERED)

    def settle(self, history: ChoiceHistory, outcome: GuardOutcome) -> None:
        """Count how a choice ended, if it had a broken attempt; only the first word counts."""
        if history.is_settled or not history.broken:
            return
        history.is_settled = True
        for record in (*history.broken, *history.observed):
            record.outcome = outcome
        self._num_outcomes[history.broken[0].verdict.kind, outcome] += 1

    def recent(self) -> Iterator[dict[str, Any]]:
        """The last verdicts, the newest first."""
        return (_shown(record) for record in reversed(self._recent))

    def statistics(self) -> GuardStatistics:
        """The counts."""
        return GuardStatistics(
            num_verdicts=dict(self._num_verdicts),
            num_retries=dict(self._num_retries),
            num_resumed=self._num_resumed,
            num_given_up=dict(self._num_given_up),
            num_outcomes=dict(self._num_outcomes),
        )


def _shown(record: GuardRecord) -> dict[str, Any]:
    verdict = record.verdict
    return {
        "at_seconds": round(record.at_seconds, 3),
        "request_id": record.request_id,
        "choice": record.choice_idx,
        "attempt": record.attempt,
        "worker": record.worker_id,
        "prefill": verdict.prefill_id or None,
        "kind": verdict.kind,
        "detector": verdict.detector,
        "action": verdict.action,
        "num_tokens": verdict.num_tokens,
        "evidence": verdict.evidence,
        "num_quarantined_blocks": verdict.num_quarantined_blocks,
        "follows": record.follows or None,
        "num_sent_tokens": record.num_sent_tokens,
        "outcome": record.outcome.value if record.outcome else None,
    }
