"""`python -m bench.bench_replay` in a bounded form: through `lineclear serve`, tiers find what a pool forgets."""

import os

import pytest

from bench.bench_replay import replay_figures
from bench.sessions import Cut, archive_path, load_replay

ARCHIVE = archive_path(os.environ.get("LINECLEAR_DATA", ""))
SHORT = Cut(scale=32, num_sessions=8, max_requests=4)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason="no sessions: LINECLEAR_DATA is not set"),
]


def test_a_replay_of_four_times_the_pool_finds_nearly_what_an_unbounded_pool_would() -> None:
    figures = {figure.name: figure.value for figure in replay_figures(load_replay(ARCHIVE, SHORT), "apart")}
    assert figures["apart_working_set_ratio"] >= 4
    assert figures["apart_device_only_hit_rate_below_unbounded"] > 10
    assert figures["apart_tiers_hit_rate_below_unbounded"] <= 3
    assert figures["apart_small_host_hit_rate_below_unbounded"] <= 3
    assert figures["apart_small_host_disk_hit_tokens"] > 0
    assert figures["apart_restarted_hit_rate"] > 0.95
    assert figures["apart_unbounded_handoffs"] > 0
    assert not any(value for name, value in figures.items() if name.endswith("_other_answers"))
