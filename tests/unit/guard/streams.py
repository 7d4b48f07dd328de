"""Streams of evidence with given figures, without randomness where a figure is exact."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from lineclear.guard.evidence import Detector, Verify

PROMPT_LEN = 200


@dataclass
class Stream:
    verifies: list[Verify]
    tokens: "array[int]"
    num_prompt_tokens: int = PROMPT_LEN

    @classmethod
    def of_counts(cls, counts: Sequence[int], num_drafts: int, tokens: "array[int] | None" = None) -> "Stream":
        verifies: list[Verify] = []
        num_tokens = 0
        for count in counts:
            num_tokens += count + 1
            verifies.append(Verify(num_drafts, count, num_tokens))
        if tokens is None:
            random = Random(1)
            tokens = array("I", [random.randrange(4096) for _ in range(PROMPT_LEN + num_tokens)])
        return cls(verifies, tokens)

    @classmethod
    def of_lengths(cls, accept_length: float, num_tokens: int, *, num_drafts: int) -> "Stream":
        """Verifies whose average is as even as can be."""
        counts: list[int] = []
        while sum(counts) + len(counts) < num_tokens:
            total = round((accept_length - 1.0) * (len(counts) + 1))
            counts.append(min(num_drafts, max(0, total - sum(counts))))
        return cls.of_counts(counts, num_drafts)

    @classmethod
    def looping(cls, accept_rate: float, num_tokens: int, *, num_drafts: int, period: int = 7) -> "Stream":
        even = cls.of_lengths(1.0 + accept_rate * num_drafts, num_tokens, num_drafts=num_drafts)
        for idx in range(PROMPT_LEN + period, len(even.tokens)):
            even.tokens[idx] = even.tokens[idx - period]
        return even

    @classmethod
    def copying(cls, num_tokens: int, *, num_drafts: int, period: int | None = None) -> "Stream":
        """The prompt has all of the output, which is accepted whole; with a period the copied text repeats itself."""
        counts = [num_drafts] * (num_tokens // (num_drafts + 1))
        num_output = sum(counts) + len(counts)
        random = Random(2)
        text = [random.randrange(4096) for _ in range(num_output)]
        if period is not None:
            text = [text[idx % period] for idx in range(num_output)]
        made = cls.of_counts(counts, num_drafts, array("I", [1, 2, 3, *text, 4, *text]))
        made.num_prompt_tokens = 4 + num_output
        return made


def stream(accept_by_position: Sequence[float], num_tokens: int, seed: int = 0) -> Stream:
    """Verifies drawn from shares of acceptance, each given that those before it were accepted."""
    random = Random(seed)
    counts: list[int] = []
    while sum(counts) + len(counts) < num_tokens:
        count = 0
        while count < len(accept_by_position) and random.random() < accept_by_position[count]:
            count += 1
        counts.append(count)
    return Stream.of_counts(counts, len(accept_by_position))


def findings(detector: Detector, evidence: Stream) -> list[tuple[str, int]]:
    """What a detector finds, and after how many tokens."""
    found: list[tuple[str, int]] = []
    for verify in evidence.verifies:
        tokens = evidence.tokens[: evidence.num_prompt_tokens + verify.num_tokens]
        finding = detector.judge(verify, tokens, evidence.num_prompt_tokens)
        if finding is not None:
            found.append((finding.kind, verify.num_tokens))
    return found
