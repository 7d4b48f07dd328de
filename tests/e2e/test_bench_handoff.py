"""`python -m bench.bench_handoff` in a bounded form: it runs to its end, and its figures are about what they say."""

import math
from collections.abc import Callable, Iterator

import pytest

from bench.handoff.cancels import cancel_to_free
from bench.handoff.control import control_cpu
from bench.handoff.protection import protection_cost
from bench.handoff.threshold import threshold
from bench.handoff.transfer import layouts, real
from lineclear.evaluation.figures import Figure

pytestmark = pytest.mark.e2e

KV_BYTES_OF_A_TOKEN = 5184


def test_a_handoff_is_watched_in_both_processes() -> None:
    figures = {figure.name: figure.value for figure in real("shm", 512, 1)}
    assert figures["handoff_512_shm_bytes"] == 511 * KV_BYTES_OF_A_TOKEN / 1e6
    assert figures["handoff_512_shm_writes"] >= 1
    assert figures["handoff_512_shm_transfer"] > 0
    assert figures["handoff_512_shm_transfer_hidden_share"] < 1


@pytest.mark.parametrize(
    "measure",
    [
        lambda: layouts("shm", 512, num_rounds=1, num_mixing=4),
        lambda: protection_cost(real_turns=1, real_requests=2, null_turns=2, null_requests=8),
        lambda: cancel_to_free(8, {"null": ("--null",)}),
        lambda: control_cpu((64,), num_turns=1),
        lambda: threshold((32,), num_turns=1),
    ],
    ids=["layouts", "protection", "cancels", "control", "threshold"],
)
def test_it_runs_to_its_end(measure: Callable[[], Iterator[Figure]]) -> None:
    figures = list(measure())
    assert len({figure.name for figure in figures}) == len(figures) > 0
    assert not any(math.isnan(figure.value) for figure in figures)
