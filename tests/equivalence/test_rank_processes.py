"""Ranks that are processes with gloo between them answer as one does; a lost one is an error of all others."""

import signal
from functools import partial

import pytest

from lineclear.parallel.build import KvLayout
from tests.contract.rank_worlds import LOST, run_processes
from tests.equivalence import rank_scenarios
from tests.equivalence.rank_engines import alone

DEADLINE_SECONDS = 60.0
SHORT_DEADLINE_SECONDS = 10.0
"""Far more than a pass takes on a busy machine."""


@pytest.mark.parametrize(("size", "kv_layout"), [(2, "replicated"), (3, "layersplit")])
def test_processes_answer_as_one_does(size: int, kv_layout: KvLayout) -> None:
    answers = run_processes("gloo", partial(rank_scenarios.answer, kv_layout), size, DEADLINE_SECONDS)
    assert answers == [alone()] * size


def test_a_rank_killed_in_a_pass_is_an_error_of_all_others_at_once() -> None:
    scenario = partial(rank_scenarios.lose_one, "replicated", signal.SIGKILL)
    results = run_processes("gloo", scenario, 3, DEADLINE_SECONDS, lost=[rank_scenarios.VICTIM])
    assert results == [("RankLostError", 1), LOST, ("RankLostError", 1)]


def test_a_rank_stopped_in_a_pass_is_an_error_of_all_others_after_the_deadline() -> None:
    """Whose name they tell depends on whom they waited for, and that one may have waited, too."""
    scenario = partial(rank_scenarios.lose_one, "layersplit", signal.SIGSTOP)
    results = run_processes("gloo", scenario, 3, SHORT_DEADLINE_SECONDS, lost=[rank_scenarios.VICTIM])
    assert [each if each == LOST else each[0] for each in results] == ["RankLostError", LOST, "RankLostError"]
