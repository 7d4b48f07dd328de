"""The bench of the gateway, briefly: it ends, and prints its figures."""

import re

import pytest

from tests.e2e.processes import running

pytestmark = pytest.mark.e2e


def test_the_bench_prints_its_figures() -> None:
    options = ["--streams", "2", "--seconds", "1", "--prompt-bytes", "2000", "--clients", "1"]
    with running(["-m", "bench.bench_gateway", *options]) as bench:
        assert bench.wait() == 0, bench.text
    figures = dict(re.findall(r"^(\w+): (\S+)", bench.text, re.MULTILINE))
    names = [f"{name}_late_{part}" for name in ("alone", "beside_long_prompts") for part in ("p50", "p99", "max")]
    assert list(figures) == [*names, "long_prompts_counted"]
    assert int(figures["long_prompts_counted"]) > 0
