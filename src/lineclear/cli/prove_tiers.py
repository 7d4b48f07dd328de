"""`lineclear prove tiers`: one line for each run of the workload, then the figures."""

from collections.abc import Iterator
from pathlib import Path

from lineclear.evaluation.figures import Figure, print_figures
from lineclear.testing.tiers.killing import Killings, kill_writers
from lineclear.testing.tiers.proof import Outcome, bounded_proof, full_proof

_EXIT_DISPROVED = 1
_NUM_KILLS = {False: 5, True: 200}


def run(*, is_full: bool, path: Path | None) -> int:
    """Run everything; the exit code says whether all was as it must be."""
    proof = full_proof() if is_full else bounded_proof()
    outcomes: list[Outcome] = []
    for outcome in proof.run():
        print(_line(outcome), flush=True)
        outcomes.append(outcome)
    killings = kill_writers(_NUM_KILLS[is_full])
    is_proven = killings.is_as_expected and all(outcome.is_as_expected for outcome in outcomes)
    print_figures(_figures(proof.working_set_ratio, outcomes, killings), path)
    return 0 if is_proven else _EXIT_DISPROVED


def _line(outcome: Outcome) -> str:
    verdict = "ok " if outcome.is_as_expected else "BAD"
    strange = f", {outcome.num_strange} with other drafts" if outcome.arm.judges_drafts else ""
    return f"{verdict} {outcome.arm.name}: {outcome.num_wrong} of {outcome.num_requests} with wrong tokens{strange}"


def _figures(working_set_ratio: float, outcomes: list[Outcome], killings: Killings) -> Iterator[Figure]:
    yield Figure("working_set_ratio", working_set_ratio, "x the device pool")
    for outcome in outcomes:
        name = outcome.arm.name
        yield Figure(f"{name}_requests", outcome.num_requests)
        yield Figure(f"{name}_wrong", outcome.num_wrong)
        if outcome.arm.is_control:
            yield Figure(f"{name}_wrong_share", outcome.num_wrong / outcome.num_requests)
        if outcome.arm.judges_drafts:
            yield Figure(f"{name}_other_drafts", outcome.num_strange)
            yield Figure(f"{name}_other_drafts_share", outcome.num_strange / outcome.num_requests)
        yield from _traffic(outcome)
    yield Figure("controls_found", sum(each.is_as_expected for each in outcomes if each.arm.is_control))
    yield Figure("controls", sum(each.arm.is_control for each in outcomes))
    yield Figure("kills", killings.num_kills)
    yield Figure("kills_files_compared", killings.num_files)
    yield Figure("kills_unfinished_files", killings.num_temporary)
    yield Figure("kills_broken_files", killings.num_broken)
    yield Figure("kills_answers", killings.num_answers)
    yield Figure("kills_wrong_answers", killings.num_wrong_answers)
    yield Figure("kills_disk_hit_tokens", killings.disk_hit_tokens)


def _traffic(outcome: Outcome) -> Iterator[Figure]:
    """That an arm has used the tiers at all."""
    tiers, copies = outcome.statistics.scheduler.tiers, outcome.statistics.copies
    if tiers is not None and copies is not None:
        name = outcome.arm.name
        yield Figure(f"{name}_host_hit_tokens", tiers.host_hit_tokens)
        yield Figure(f"{name}_disk_hit_tokens", tiers.disk_hit_tokens)
        yield Figure(f"{name}_waits", copies.num_waits)
        yield Figure(f"{name}_failed_copies", sum(tiers.failures.values()))
