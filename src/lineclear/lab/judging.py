"""Judges an answer against the same request alone: the same, a numeric tie, or corruption.

    answer, reference ──first difference──▶ none: same
                                           at a token whose rival was as likely, within `tie_margin`: tie
                                           else: corruption

The reference says how likely the tokens were that it did not choose. Where the answer goes on with such a rival and the
two are closer than rounding may move them, both are right. After the first difference nothing can be compared token by
token, so symptoms are looked for in the whole answer, of ties as well.

Pure: whoever asks servers is in `lab/reference.py`.
"""

from dataclasses import dataclass
from enum import StrEnum

from lineclear.lab.symptoms import Donors, Foreign, find_garbling, find_loop

DEFAULT_TIE_MARGIN = 0.05
"""Difference of log-probabilities that rounding may make up, in nats: kernels that depend on the batch move logits by
1e-4 in fp32, by some hundredths in bf16."""


class Outcome(StrEnum):
    """What an answer is."""

    SAME = "same"
    TIE = "tie"
    CORRUPTION = "corruption"
    FAILED = "failed"
    """There is no answer: the server said so, which is honest."""
    UNCOMPARED = "uncompared"
    """Not greedy, or its reference failed."""


@dataclass(frozen=True, slots=True)
class ReferenceToken:
    """A token of the reference and its rivals, all as text with the natural logarithm of their probability."""

    text: str
    logprob: float
    rivals: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """What the request alone gets; without tokens nothing is a tie."""

    text: str
    tokens: tuple[ReferenceToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got under load, and what is known of it."""

    request_id: str
    prompt: str
    text: str
    error: str | None = None
    known_answer: str | None = None
    """The only right one, where there is one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one request."""

    request_id: str
    outcome: Outcome
    differs_at: int | None = None
    """Characters that are the same."""
    margin: float | None = None
    """How much less likely the reference found what the answer has there, in nats; None if it does not say."""
    is_right: bool | None = None
    """Whether it is the known answer."""
    garbling: str | None = None
    loop: str | None = None
    foreign: Foreign | None = None

    @property
    def is_anomaly(self) -> bool:
        """Whether the client was given something wrong as if it were right."""
        return self.outcome is Outcome.CORRUPTION


def judge(
    answer: Answer, reference: Reference | None, donors: Donors, tie_margin: float = DEFAULT_TIE_MARGIN
) -> Judgement:
    """Judge one answer; `donors` are all requests of the run."""
    is_right = None if answer.known_answer is None else answer.text.strip() == answer.known_answer.strip()
    if answer.error is not None:
        return Judgement(answer.request_id, Outcome.FAILED, is_right=None)
    if reference is None:
        return Judgement(answer.request_id, Outcome.UNCOMPARED, is_right=is_right)
    if answer.text == reference.text:
        return Judgement(answer.request_id, Outcome.SAME, is_right=is_right)
    legitimate = f"{answer.prompt}\n{reference.text}"
    differs_at = first_difference(answer.text, reference.text)
    margin = margin_at(answer.text, reference, differs_at)
    garbling = find_garbling(answer.text, legitimate)
    foreign = donors.find(answer.request_id, answer.text, legitimate)
    is_tie = margin is not None and margin <= tie_margin and garbling is None and foreign is None
    return Judgement(
        answer.request_id,
        Outcome.TIE if is_tie else Outcome.CORRUPTION,
        differs_at,
        margin,
        is_right,
        garbling,
        find_loop(answer.text, legitimate),
        foreign,
    )


def first_difference(one: str, other: str) -> int:
    """Return how many characters are the same from the start."""
    for idx, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return idx
    return min(len(one), len(other))


def margin_at(text: str, reference: Reference, differs_at: int) -> float | None:
    """Return how much less likely the reference found the token that the text has where it differs first.

    The text's token is not known, only its characters: of the rivals that it goes on with, the longest. Where the text
    ends before the reference does, any rival may be the end.
    """
    start = 0
    for token in reference.tokens:
        end = start + len(token.text)
        if end > differs_at:
            rest = text[start:]
            # A rival without text ends an answer, so a text that goes on has not chosen it.
            fitting = [
                (len(rival), logprob)
                for rival, logprob in token.rivals
                if rival and rival != token.text and rest.startswith(rival)
            ]
            if not rest:
                fitting = [(0, logprob) for rival, logprob in token.rivals if rival != token.text]
            return token.logprob - max(fitting)[1] if fitting else None
        start = end
    return None
