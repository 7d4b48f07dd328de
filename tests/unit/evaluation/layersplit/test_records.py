from pathlib import Path

import msgspec
import pytest

from lineclear.base.errors import ConfigError
from lineclear.evaluation.layersplit.records import PointKey, Records, load_records, save_records, wanted_points
from lineclear.evaluation.layersplit.setting import Setting, budget_for
from tests.unit.evaluation.layersplit.made_records import SETTING, SHAPE, make_point, make_records


def test_a_run_goes_on_with_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    assert load_records(path, SETTING) == Records(setting=SETTING)
    save_records(path, make_records())
    resumed = load_records(path, SETTING)
    assert resumed == make_records()
    assert resumed.find(PointKey(2, "rotation", 2000)) == make_point(2000)
    assert resumed.find(PointKey(4, "rotation", 2000)) is None
    assert [each.name for each in tmp_path.iterdir()] == ["records.json"]


def test_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.json"
    save_records(path, make_records())
    with pytest.raises(ConfigError, match=r"^resume: "):
        load_records(path, Setting(lengths=SETTING.lengths, num_sessions=3))
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"records of this version"):
        load_records(path, SETTING)


def test_a_point_has_a_ratio_and_shares() -> None:
    point = make_point(1000)
    assert point.ratio == point.work_ratio == 2
    assert point.turns["layersplit"].tokens_per_s == 2000
    assert point.turns["layersplit"].hit_share == 0.8
    assert point.problems == []


def test_what_does_not_add_up_is_said() -> None:
    point = make_point(1000)
    split = point.turns["layersplit"]
    lost = msgspec.structs.replace(split, num_computed_tokens=397)
    more = msgspec.structs.replace(split, batch_bytes={"0 latent": 1})
    for turn, said in ((lost, "1600 found and 397 computed, of 1998"), (more, "the running batch's are")):
        turns = {**point.turns, "layersplit": turn}
        (problem,) = msgspec.structs.replace(point, turns=turns).problems
        assert problem.startswith("2 ranks, rotation 1000: layersplit: ")
        assert said in problem
    for num_digests, num_different in ((10, 1), (0, 0)):
        replaced = msgspec.structs.replace(point, num_digests=num_digests, num_different=num_different)
        assert "parts of prompts differ" in replaced.problems[0]


def test_memory_to_spare_is_a_point_of_its_own_where_the_first_rotation_has_none() -> None:
    binding = Setting(lengths=(1000, 1100), num_sessions=3)
    kinds = [(key.kind, key.length) for key in wanted_points(binding, budget_for(binding, SHAPE, 2), 2)]
    assert kinds == [("spare", 1000), ("rotation", 1000), ("rotation", 1100)]
    roomy = Setting(lengths=(1000, 3500), num_sessions=3)
    kinds = [(key.kind, key.length) for key in wanted_points(roomy, budget_for(roomy, SHAPE, 2), 2)]
    assert kinds == [("rotation", 1000), ("rotation", 3500)]
