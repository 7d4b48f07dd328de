import json
from pathlib import Path

import pytest

from lineclear.cli.main import main


def test_the_bundled_model_has_baselines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["guard", "report", "--json", str(tmp_path / "report.json")]) == 0
    figures = json.loads((tmp_path / "report.json").read_text())
    assert "greedy_accept_at_3: " in capsys.readouterr().out
    assert figures["greedy_sequences"] >= 200
    assert 0.3 < figures["sampled_accept_at_1"] < 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["calibrate", "--alarms-per-million", "0"], "got '0', allowed: a number above 0"),
        (["calibrate", "--out", "/nowhere/x.json"], "got '/nowhere/x.json', allowed: a file in a folder that is there"),
        (["calibrate", "--port", "1"], "--port has no effect on `lineclear guard calibrate`"),
    ],
)
def test_what_is_refused(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["guard", *arguments])
    assert caught.value.code == 2
    assert error in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["guard", "report", "--guard-baselines", str(tmp_path / "none.json")]) == 2
    assert "guard_baselines: got " in capsys.readouterr().err
    assert main(["guard", "calibrate", "--draft-tokens", "0", "--out", str(tmp_path / "x.json")]) == 2
    assert "draft_tokens: got 0, allowed: at least 1" in capsys.readouterr().err
