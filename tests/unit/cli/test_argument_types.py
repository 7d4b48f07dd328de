from pathlib import Path

import pytest

from lineclear.cli.main import main


@pytest.mark.parametrize(
    "argv",
    [
        ["eval", "--edit-tasks", "-5"],
        ["eval", "--code-prompts", "many"],
        ["eval", "--json", "/nowhere/figures.json"],
        ["prove", "handoff", "--json", "/nowhere/figures.json"],
        ["prove", "handoff", "--json", "/"],
        ["chat", "--temperature", "nan"],
        ["chat", "--temperature", "warm"],
        ["chat", "--max-tokens", "-1"],
    ],
)
def test_what_cannot_be_is_refused_before_any_work(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lineclear: error: argument {argv[-2]}: got '{argv[-1]}', allowed: ")
    assert error.count("\n") == 1


def test_a_file_that_can_be_written_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lineclear.cli.prove.run", lambda arguments: int(arguments.json != Path("figures.json")))
    assert main(["prove", "handoff", "--json", "figures.json"]) == 0
