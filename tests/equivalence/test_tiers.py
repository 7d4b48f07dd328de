"""P2 and P6 with tiers: the proof of `lineclear prove tiers`, bounded."""

import functools

import pytest

from lineclear.testing.tiers.killing import kill_writers
from lineclear.testing.tiers.proof import Outcome, bounded_proof


@functools.cache
def outcomes() -> dict[str, Outcome]:
    return {outcome.arm.name: outcome for outcome in bounded_proof().run()}


GUARDED = (
    "write_through_with_disk",
    "write_through_selective_with_disk",
    "write_back_with_disk",
    "drafts_alike",
    "copies_that_fail",
)
CONTROLS = ("without_index_wait", "without_latent_wait", "without_draft_wait", "without_offload_hold")


@pytest.mark.parametrize("name", GUARDED)
def test_tokens_are_those_without_tiers_under_random_delays(name: str) -> None:
    outcome = outcomes()[name]
    assert (outcome.num_wrong, outcome.num_strange) == (0, 0)
    tiers = outcome.statistics.scheduler.tiers
    assert tiers is not None
    assert tiers.host_hit_tokens + tiers.disk_hit_tokens > 500
    assert tiers.disk_hit_tokens > 0 or name != "write_through_with_disk"
    assert bool(tiers.failures) == (name == "copies_that_fail")


@pytest.mark.parametrize("name", CONTROLS)
def test_each_guard_that_is_taken_out_is_missed(name: str) -> None:
    assert outcomes()[name].is_as_expected


def test_every_arm_is_tested() -> None:
    assert set(outcomes()) == {*GUARDED, *CONTROLS}
    assert bounded_proof().working_set_ratio >= 4


def test_killed_writers_leave_whole_files_and_right_answers() -> None:
    killings = kill_writers(5)
    assert (killings.num_broken, killings.num_wrong_answers) == (0, 0)
    assert killings.num_files > 0
    assert killings.disk_hit_tokens > 0
