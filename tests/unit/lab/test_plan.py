"""Plans of ablations, and the report about their outcomes."""

from pathlib import Path

import msgspec
import pytest

from lineclear.base.errors import ConfigError
from lineclear.lab.cells import Ablation, CellOutcome
from lineclear.lab.load import requests_of
from lineclear.lab.plan import Cell, Plan, read_plan
from lineclear.lab.report import render_report
from lineclear.lab.service import read_firings
from lineclear.testing.faults.catalogue import FAULTS, making_of
from lineclear.testing.faults.firings import Firings

EXAMPLES = Path(__file__).parents[3] / "examples"


def outcome(**changed: object) -> CellOutcome:
    facts: dict[str, object] = {
        "key": "late_writes_8clients_1to1_off", "faults": ("late_writes",), "num_clients": 8, "num_prefill": 1,
        "num_decode": 1, "sanitizer": "off", "num_requests": 100, "num_answers": 100, "num_corrupted": 0, "num_ties": 0,
        "num_garbled": 0, "num_loops": 0, "num_foreign": 0, "num_left": 0, "errors": {}, "num_corrupted_alone": 0,
        "firings": {"late_writes": 3}, "sanitizer_faults": {}, "seconds": 50.0, "seconds_p50": 0.5, "seconds_p95": 1.0,
    }  # fmt: skip
    return CellOutcome(**(facts | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["first-fault", "second-fault"])
def test_the_examples_are_plans_with_a_control_without_the_fault(name: str) -> None:
    cells = list(read_plan(EXAMPLES / f"{name}.toml", FAULTS).cells())
    assert len({cell.key for cell in cells}) == len(cells) == 4
    with_fault = {cell.faults[1:] for cell in cells}
    assert len(with_fault) == 2
    assert () in with_fault


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('faults = [["none_such"]]', "none_such"),
        ('ratio = ["3"]', "ratio"),
        ('ratio = ["3:0"]', "ratio"),
        ("clients = [0]", "clients"),
        ('sanitizer = ["half"]', "sanitizer"),
        ("colour = 1", "colour"),
        ("clients = 1", "clients"),
    ],
)
def test_what_is_wrong_in_a_plan_is_named(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f'name = "x"\n[grid]\n{line}\n')
    with pytest.raises(ConfigError, match=named):
        read_plan(path, FAULTS)


@pytest.mark.parametrize("line", ["requests = 0", "num_prompts = 0", "prompt_len = [5, 2]", "leaving_share = 2.0"])
def test_numbers_that_make_no_load_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f'name = "x"\n{line}\n[grid]\n')
    with pytest.raises(ConfigError, match=line.partition(" ")[0]):
        read_plan(path, FAULTS)


def test_no_plan_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="PLAN"):
        read_plan(tmp_path / "nothing.toml", FAULTS)


def test_requests_are_the_same_for_the_same_seed() -> None:
    plan = Plan(name="x", grid=read_plan(EXAMPLES / "first-fault.toml", FAULTS).grid, seed=3, num_prompts=5)
    assert requests_of(plan) == requests_of(plan)
    assert len({str(each) for each in requests_of(plan)}) == 5


def test_a_folder_of_another_plan_is_refused_and_a_cell_that_is_there_is_not_run_again(tmp_path: Path) -> None:
    whole = read_plan(EXAMPLES / "first-fault.toml", FAULTS)
    plan = Plan(name="one", grid=type(whole.grid)(faults=(("late_writes",),)))
    run = Ablation(plan, tmp_path, lambda *_: None)
    (cell,) = plan.cells()
    (tmp_path / f"{cell.key}.json").write_bytes(msgspec.json.encode(outcome()))
    assert list(run.run()) == [outcome()]
    with pytest.raises(ConfigError, match="out"):
        Ablation(whole, tmp_path, lambda *_: None)


def test_the_report_shows_what_is_wrong_and_what_never_fired() -> None:
    plan = Plan(name="A <plan>", grid=read_plan(EXAMPLES / "first-fault.toml", FAULTS).grid)
    wrong = outcome(key="wrong", num_corrupted=4, num_answers=10_000, sanitizer_faults={"write_after_seal": 2})
    silent = outcome(key="silent", firings={"late_writes": 0})
    page = render_report(plan, [wrong, silent])
    assert "A &lt;plan&gt;" in page
    assert "1.1 to 10.2" in page
    assert "write_after_seal 2" in page
    assert "Armed and never fired: silent: late_writes" in page
    assert silent.unfired == ["late_writes"]
    assert page.count("<circle") == 2


def test_a_cell_without_answers_bounds_nothing() -> None:
    empty = outcome(num_answers=0, seconds=0.0)
    assert empty.exact_in_10000 == empty.wilson_in_10000 == (0.0, 10_000.0)
    assert (empty.in_10000, empty.answers_per_second) == (0.0, 0.0)


def test_faults_that_are_unknown_or_take_the_same_part_are_refused(tmp_path: Path) -> None:
    firings = Firings(tmp_path, "w")
    with pytest.raises(ConfigError, match="fault"):
        making_of(["rain"], firings, 0)
    with pytest.raises(ConfigError, match="not together"):
        making_of(["index_read_without_wait", "latent_read_without_wait"], firings, 0)


def test_firings_count_by_worker_and_fault(tmp_path: Path) -> None:
    fire = Firings(tmp_path, "w0").counter("late_writes")
    fire()
    fire()
    Firings(tmp_path, "w1").counter("late_writes")()
    assert read_firings(tmp_path, ["late_writes", "bit_flips"]) == {"late_writes": 3, "bit_flips": 0}


def test_cells_have_names_for_files() -> None:
    assert Cell((), 8, 0, 1, "off").key == "no_fault_8clients_0to1_off"
