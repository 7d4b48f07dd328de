"""The benchmark of KV layouts from end to end, in small: its checks hold, whatever the figures are."""

import json
from pathlib import Path

import pytest

from lineclear.cli.main import main
from lineclear.evaluation.layersplit.setting import wanted_capacity

pytestmark = pytest.mark.e2e

COMMAND = [
    "bench",
    "layersplit",
    "--ranks",
    "2",
    "--lengths",
    "512",
    "1024",
    "--sessions",
    "2",
    "--max-batch-tokens",
    "512",
]


def test_both_layouts_are_measured_and_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    figures_path, report = tmp_path / "figures.json", tmp_path / "report"
    command = [*COMMAND, "--json", str(figures_path), "--report", str(report)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "2 ranks, replicated: ready" in printed.err
    figures = json.loads(figures_path.read_text())
    assert figures["problems"] == 0
    assert figures["n2_fit_ratio"] >= wanted_capacity(5, 2)
    assert figures["n2_layersplit_kv"] <= figures["n2_replicated_kv"]
    for name in ("n2_512", "n2_1024"):
        assert figures[f"{name}_sent"] == figures[f"{name}_running_batch"] > 0
        assert figures[f"{name}_sent"] < figures[f"{name}_whole_pool"]
        assert figures[f"{name}_parts_compared"] == 10
        assert figures[f"{name}_parts_different"] == 0
    for layout in ("replicated", "layersplit"):
        assert figures[f"n2_512_{layout}_hit_share"] == pytest.approx(0.9, abs=0.05)
    # Both sessions fit into the bytes of one layout alone.
    assert figures["n2_1024_layersplit_hit_share"] > figures["n2_1024_replicated_hit_share"]
    events = json.loads((report / "step.trace.json").read_text())["traceEvents"]
    assert {"broadcast 1 latent", "receive 1 latent", "compute 1"} <= {event["name"] for event in events}
    assert (report / "step.trace-replicated.json").exists()
    assert (report / "throughput.svg").exists()
    # There is nothing left to measure: a run that goes on says the same, and starts no rank.
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr() == (printed.out, "")
    assert main(command) == 2
    assert "--resume to go on" in capsys.readouterr().err
