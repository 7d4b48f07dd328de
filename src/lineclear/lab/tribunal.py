"""Judges all results of a run, and counts what came of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lineclear.lab.families import families
from lineclear.lab.intervals import Interval, exact_interval
from lineclear.lab.judging import Answer, Judgement, Outcome, Reference, judge
from lineclear.lab.reference import References
from lineclear.lab.results import Result, is_greedy, prompt_text, read_reference
from lineclear.lab.symptoms import Donors


def judge_results(results: Sequence[Result], references: References, tie_margin: float) -> Iterator[Judgement]:
    """Judge each result; requests that are not greedy are judged by their known answers alone."""
    found = {result.id: _reference(result, references) for result in results}
    texts = {result.id: f"{prompt_text(result.request)}\n{_text(found[result.id])}" for result in results}
    donors = Donors(texts, families({result.id: result.request for result in results}))
    for result in results:
        answer = Answer(result.id, prompt_text(result.request), result.text, result.error, result.known_answer)
        yield judge(answer, found[result.id], donors, tie_margin)


@dataclass(frozen=True, slots=True)
class Tally:
    """Judgements, counted."""

    num_by_outcome: dict[Outcome, int]
    num_garbled: int
    num_loops: int
    num_foreign: int
    num_known: int
    num_known_right: int

    @property
    def num_judged(self) -> int:
        """Answers that were compared with a reference."""
        return sum(self.num_by_outcome[each] for each in (Outcome.SAME, Outcome.TIE, Outcome.CORRUPTION))

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the share of corrupted answers; None if nothing was compared."""
        if not self.num_judged:
            return None
        return exact_interval(self.num_by_outcome[Outcome.CORRUPTION], self.num_judged)


def tally(judgements: Sequence[Judgement]) -> Tally:
    """Count judgements."""
    counts = Counter(judgement.outcome for judgement in judgements)
    return Tally(
        num_by_outcome={outcome: counts[outcome] for outcome in Outcome},
        num_garbled=sum(judgement.garbling is not None for judgement in judgements),
        num_loops=sum(judgement.loop is not None for judgement in judgements),
        num_foreign=sum(judgement.foreign is not None for judgement in judgements),
        num_known=sum(judgement.is_right is not None for judgement in judgements),
        num_known_right=sum(judgement.is_right is True for judgement in judgements),
    )


def _reference(result: Result, references: References) -> Reference | None:
    if not is_greedy(result.request):
        return None
    body: dict[str, Any] | None = references.body(result.request)
    return None if body is None else read_reference(body, with_tokens=bool(result.request.get("logprobs")))


def _text(reference: Reference | None) -> str:
    return "" if reference is None else reference.text
