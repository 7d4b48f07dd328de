import json
from pathlib import Path

import pytest

from lineclear.base.errors import ConfigError
from lineclear.evaluation.layersplit import plot
from lineclear.evaluation.layersplit.report import targets, trace_path, write_report, write_traces
from lineclear.evaluation.layersplit.summary import figures
from lineclear.parallel.meter import Happening, Span
from tests.unit.evaluation.layersplit.made_records import SHAPE, make_point, make_records


def test_every_figure_has_one_name() -> None:
    found = list(figures(make_records(), SHAPE))
    by_name = {figure.name: figure.value for figure in found}
    assert len(by_name) == len(found)
    assert by_name["n2_fit_ratio"] == pytest.approx(1.656)
    assert by_name["n2_1000_spare_input_ratio"] == by_name["n2_2000_input_ratio"] == 2
    assert by_name["n2_2000_sent"] == by_name["n2_2000_running_batch"] == 0.004
    assert by_name["n2_awaited_bytes_share"] == 0.05
    assert by_name["glm5_78_layers_8_ranks_capacity_ratio"] == 7.8
    assert by_name["problems"] == len(make_records().problems)


def test_the_report_has_table_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_report(tmp_path, make_records(), SHAPE)
    table = (tmp_path / "table.md").read_text()
    assert "| 2,000 | 2 | 1,000 | 80% | 2,000 | 80% | 2.00 | 2.00 | 1.5 |" in table
    assert "| 1,000, memory to spare | 2 |" in table
    assert "GLM-5.1 on eight H200: a projection" in table
    assert (tmp_path / plot.PLOT_NAME).read_text().count("2.00x") >= 1


def test_targets_are_judged() -> None:
    records = make_records()
    records.points.append(make_point(40_000))
    judged = {target.what: target.is_met for target in targets(records, 2, 5)}
    assert judged["tokens that fit, LayerSplit / replicated"]
    assert judged["input throughput at 40,000"]
    assert judged["waited-for share of the latent part at 2,000"]
    assert judged["input throughput, equal hits at 2,000"]
    assert judged["the same by core time, equal hits at 2,000"]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'lineclear\[plots\]'"):
        plot.require_matplotlib()


def test_each_layout_has_its_timeline(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    spans = {0: [Span(Happening.COMPUTE, "computing", 1, None, 5, 9)]}
    write_traces(path, "layersplit", spans)
    write_traces(path, "replicated", spans)
    assert trace_path(path, "replicated") == tmp_path / "step-replicated.json"
    for each in (path, tmp_path / "step-replicated.json"):
        assert json.loads(each.read_text())["traceEvents"][-1]["name"] == "compute 1"
