"""Ranks that are processes with gloo between them answer as one does; a lost one is an error of all others."""

import signal
from functools import partial

import pytest

from lineclear.parallel.build import KvLayout
from tests.contract.rank_worlds import LOST, run_processes
from tests.equivalence import rank_scenarios
from tests.equivalence.rank_engines import alone

DEADLINE_SECONDS = 60.0
SHORT_DEADLINE_SECONDS = 5.0


@pytest.mark.parametrize(("size", "kv_layout"), [(2, "replicated"), (3, "layersplit")])
def test_processes_answer_as_one_does(size: int, kv_layout: KvLayout) -> None:
    answers = run_processes("gloo", partial(rank_scenarios.answer, kv_layout), size, DEADLINE_SECONDS)
    assert answers == [alone()] * size


@pytest.mark.parametrize(("kv_layout", "how"), [("replicated", signal.SIGKILL), ("layersplit", signal.SIGSTOP)])
def test_a_rank_lost_in_a_pass_is_an_error_of_all_others(kv_layout: KvLayout, how: signal.Signals) -> None:
    scenario = partial(rank_scenarios.lose_one, kv_layout, how)
    results = run_processes("gloo", scenario, 3, SHORT_DEADLINE_SECONDS, lost=[rank_scenarios.VICTIM])
    assert results == [("RankLostError", 1), LOST, ("RankLostError", 1)]
