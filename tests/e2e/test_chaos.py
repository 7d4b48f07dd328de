"""The bounded form of `python -m tests.e2e.chaos --all`: a cross-section of faults, phases and movers."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

from tests.e2e.chaos import QUESTION, Blow, Case, open_cluster, run_case
from tests.e2e.chaos_cluster import PREFILL, ChaosCluster, expected_tokens
from tests.e2e.chaos_control import SHORT, late_write
from tests.e2e.faults import Phase
from tests.e2e.histories import Verdict

pytestmark = pytest.mark.e2e

Expected = list[list[list[str]]]


@pytest.fixture(scope="module")
def undisturbed() -> Expected:
    """What one process answers to both questions."""
    return expected_tokens(QUESTION, SHORT)


@pytest.fixture(scope="module")
def one_host() -> Iterator[ChaosCluster]:
    with ExitStack() as stack:
        yield open_cluster(stack, "shm", ())


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[ChaosCluster]:
    if find_spec("nixl_cu13") is None:
        pytest.skip("nixl is not installed: pip install 'lineclear[nixl]'")
    with ExitStack() as stack:
        try:
            cluster = open_cluster(stack, "nixl", (PREFILL,))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespace can be made and made to lose here: {error}")
        yield cluster


@pytest.mark.parametrize(
    "case",
    [
        Case(Phase.WRITTEN_UNTOLD, Blow.RESET),
        Case(Phase.PART_LANDED, Blow.KILL),
        Case(Phase.CLEAR_UNTOLD, Blow.STOP_LONG),
        Case(Phase.ANSWERING, Blow.KILL),
    ],
    ids=str,
)
def test_a_fault_costs_no_answer_but_those_that_had_begun(
    undisturbed: Expected, one_host: ChaosCluster, case: Case
) -> None:
    result = run_case(one_host, case, "shm", undisturbed[0])
    assert not result.complaints, "\n".join([*result.complaints, one_host.text()])
    assert result.fired is not None
    assert (result.fired.phase, result.fired.worker_id) == (case.phase, case.armed_worker)
    assert result.counts[Verdict.WRONG] == result.counts[Verdict.UNCLEAR] == 0
    assert bool(result.counts[Verdict.FAILED]) is (case.phase is Phase.ANSWERING)


@pytest.mark.parametrize(
    "case", [Case(Phase.ORDER_ARRIVED, Blow.LOSS_5), Case(Phase.PART_LANDED, Blow.CUT_SHORT)], ids=str
)
def test_a_network_that_loses_costs_no_answer(undisturbed: Expected, two_hosts: ChaosCluster, case: Case) -> None:
    result = run_case(two_hosts, case, "nixl", undisturbed[0])
    assert not result.complaints, "\n".join([*result.complaints, two_hosts.text()])
    assert result.counts[Verdict.FAILED] == 0


def test_without_the_rule_a_write_that_comes_late_is_seen_in_the_answers(undisturbed: Expected) -> None:
    verdicts = late_write("shm", undisturbed[1], is_safe=False)
    assert verdicts[Verdict.WRONG] > 0
    assert verdicts[Verdict.UNCLEAR] == 0
