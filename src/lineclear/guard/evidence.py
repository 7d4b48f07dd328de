"""What detectors read: one `Verify` for each verify of a sequence, and what is asked of its tokens as a whole.

Nothing here costs a step of Python for each token: acceptance is two counts, repetition compares slices.
"""

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from lineclear.protocol.verdicts import VerdictKind

MAX_PERIOD: Final = 64
"""The longest period that a loop is searched for."""

_ITEM_BYTES: Final = array("I").itemsize


class Verify(NamedTuple):
    """One verify of a running sequence."""

    num_proposed: int
    """Drafts that were judged; 0 in a step without any."""
    num_accepted: int
    num_tokens: int
    """Output tokens by then, those of this verify included."""


class Finding(NamedTuple):
    """What a detector objects to."""

    kind: VerdictKind
    evidence: dict[str, float]


class Detector(Protocol):
    """The state of one sequence's judgement; it finds each kind once at most."""

    def judge(self, verify: Verify, tokens: "array[int]", num_prompt_tokens: int) -> Finding | None:
        """Take in one verify; `tokens` are prompt and output, those of the verify included.

        Cost: O(num_proposed), and every few tokens a comparison of slices.
        """
        ...

    @property
    def level(self) -> float:
        """How close it is to finding a collapse: 1 is a finding. 0 for detectors without such a level."""
        ...


class Run(NamedTuple):
    """The longest end of a token list that repeats itself."""

    period: int
    length: int
    """Tokens, the first occurrence included; 0 if nothing repeats."""


NO_RUN: Final = Run(0, 0)


def repeated_end(tokens: "array[int]", start: int, periods: Iterable[int], least: int) -> Run:
    """Find the shortest period with which at least the last `least` tokens from `start` on repeat, and how far back.

    Cost: a comparison of `least` tokens for each period, and of what repeats for one.
    """
    num_tokens = len(tokens)
    for period in periods:
        if num_tokens - start < least or least <= period:
            continue
        if tokens[num_tokens - least + period :] == tokens[num_tokens - least : num_tokens - period]:
            return Run(period, _run_len(tokens, start, period, least))
    return NO_RUN


def occurs_before(tokens: "array[int]", end: int, piece: "array[int]") -> bool:
    """Whether a piece stands among the first `end` tokens: then writing it again is copying.

    Cost: a search through their bytes.
    """
    data, wanted = tokens[:end].tobytes(), piece.tobytes()
    found = data.find(wanted)
    while found % _ITEM_BYTES and found >= 0:
        found = data.find(wanted, found + 1)
    return found >= 0


def _run_len(tokens: "array[int]", start: int, period: int, known: int) -> int:
    """How many of the last tokens repeat with a period, given that so many do; by bisection over whole slices."""
    num_tokens, low, high = len(tokens), known, len(tokens) - start
    while low < high:
        middle = (low + high + 1) // 2
        first = num_tokens - middle
        if tokens[first + period :] == tokens[first : num_tokens - period]:
            low = middle
        else:
            high = middle - 1
    return low
