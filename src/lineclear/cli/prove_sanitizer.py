"""`lineclear prove sanitizer`: one line for each run of the workload, then the figures."""

from collections.abc import Iterator
from pathlib import Path

from lineclear.evaluation.figures import Figure, print_figures
from lineclear.testing.sanitizer.proof import Outcome, run_arms

_EXIT_DISPROVED = 1
_NUM_CLEAN = {False: 200, True: 10_000}
_NUM_FAULTY = {False: 120, True: 600}


def run(*, is_full: bool, path: Path | None) -> int:
    """Run everything; the exit code says whether all was as it must be."""
    outcomes: list[Outcome] = []
    for outcome in run_arms(_NUM_CLEAN[is_full], _NUM_FAULTY[is_full]):
        print(_line(outcome), flush=True)
        outcomes.append(outcome)
    print_figures(_figures(outcomes), path)
    return 0 if all(outcome.is_as_expected for outcome in outcomes) else _EXIT_DISPROVED


def _line(outcome: Outcome) -> str:
    verdict = "ok " if outcome.is_as_expected else "BAD"
    planted = f", {outcome.num_told} of {outcome.num_planted} planted writes told of" if outcome.arm.plants else ""
    return (
        f"{verdict} {outcome.arm.name}: {len(outcome.found)} faults found in {outcome.arm.num_requests} requests"
        f"{planted}, {outcome.num_wrong} wrong answers"
    )


def _figures(outcomes: list[Outcome]) -> Iterator[Figure]:
    for outcome in outcomes:
        name = outcome.arm.name
        yield Figure(f"{name}_requests", outcome.arm.num_requests)
        yield Figure(f"{name}_checks", outcome.num_checks)
        yield Figure(f"{name}_faults_found", len(outcome.found))
        yield Figure(f"{name}_faults_of_other_kinds", outcome.num_other)
        yield Figure(f"{name}_wrong_answers", outcome.num_wrong)
        yield Figure(f"{name}_answers_ended", outcome.num_ended)
        if outcome.arm.plants:
            yield Figure(f"{name}_planted", outcome.num_planted)
            yield Figure(f"{name}_told", outcome.num_told)
