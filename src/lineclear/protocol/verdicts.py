"""The guard's judgement of a sequence, as the worker reports it.

observe        the sequence goes on; at most one verdict of a kind
retry, fail    its last output: it ends as "broken", and every block that it read or wrote is already forgotten,
               on every tier and by the prefill instance that wrote its prompt's KV
"""

import math
from typing import Literal

import msgspec

from lineclear.protocol.numbers import Count

VerdictKind = Literal["collapse", "loop"]
"""Drafts are accepted too seldom for what is written; or almost always, while the output repeats itself."""

VerdictAction = Literal["observe", "retry", "fail"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a detector found, and what is done about it."""

    kind: VerdictKind
    detector: str
    """Its name: seed, calibrated, heuristic."""
    action: VerdictAction
    num_tokens: Count
    """Output tokens when it was reached."""
    evidence: dict[str, float] = {}
    """The figures that it rests on, by name; all are finite."""
    num_quarantined_blocks: Count = 0
    """Blocks on the worker's device that nobody will find any more; the tiers below and prefill come on top."""
    prefill_id: str = ""
    """The prefill instance that wrote KV of this prompt; empty if none did."""

    def __post_init__(self) -> None:
        for name, value in self.evidence.items():
            if not math.isfinite(value):
                raise ValueError(f"evidence: {name} is {value}, allowed: a finite number")

    @property
    def ends_sequence(self) -> bool:
        """Whether the sequence has ended with it."""
        return self.action != "observe"
