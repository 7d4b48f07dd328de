import re
import subprocess
import sys
from pathlib import Path

import pytest

from lineclear import __version__
from lineclear.cli import gateway, worker
from lineclear.cli.main import COMMANDS, main
from lineclear.cli.option_flags import options_of
from lineclear.config.resolve import COMPONENTS


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    listed = {words[0] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert set(COMMANDS) <= listed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"lineclear {__version__}\n"


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "serve" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["nonsense"],
            "command: got 'nonsense', allowed: a command first: serve, .*, gateway, worker",
        ),
        (["serv"], "command: got 'serv', allowed: .* (did you mean serve?)"),
        (["--port", "1", "serve"], "command: got '--port', allowed: a command first: .*"),
        (["config", "--nonsense"], "unknown flag: --nonsense; `lineclear config --help` .*"),
        (["config", "--por", "1"], "unknown flag: --por (did you mean --port?); .*"),
        (["serve", "--max-total-token", "9"], "unknown flag: --max-total-token (did you mean --max-total-tokens?); .*"),
        (["serve", "--max-total-token=9"], "unknown flag: --max-total-token (did you mean --max-total-tokens?); .*"),
        (["serve", "--no-prefix-cach"], "unknown flag: --no-prefix-cach (did you mean --no-prefix-cache?); .*"),
        (["chat", "--uri", "x"], "unknown flag: --uri (did you mean --url?); .*"),
        (
            ["prove", "handoff", "--ful"],
            "unknown flag: --ful (did you mean --full?); `lineclear prove handoff --help`.*",
        ),
        (["serve", "lineclear-tiny"], "unexpected argument: lineclear-tiny; .*"),
        (["worker", "--x"], "unknown flag: --x; .*"),
        (["worker", "--port", "1"], "--port has no effect on `lineclear worker`, only on other processes; .*"),
        (["worker", "--no-colocated"], "--no-colocated has no effect on `lineclear worker`, .*"),
        (["gateway", "--cp", "2"], "--cp has no effect on `lineclear gateway`, .*"),
    ],
)
def test_what_is_unknown_is_refused_in_one_line_with_what_was_meant(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(argv) == 2
    error = capsys.readouterr().err
    assert re.fullmatch("lineclear: error: " + re.escape(message).replace(r"\.\*", ".*") + "\n", error), error


def run_main(argv: list[str]) -> object:
    try:
        return main(argv)
    except SystemExit as error:
        return error.code


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert COMMANDS[command].summary in capsys.readouterr().out


def test_help_says_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gateway", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Port to listen on; 0 picks a free one. 0 to 65535. Default: 8000." in shown
    assert "--cp" not in shown


def test_every_option_is_read_by_a_process() -> None:
    supervisor = {
        *("colocated", "prefill", "decode"),
        *("max_restarts", "restart_window_seconds", "restart_backoff_seconds"),
    }
    assert gateway.OPTIONS | worker.OPTIONS | supervisor == options_of(*COMPONENTS)


def test_light_commands_import_neither_torch_nor_the_gateway() -> None:
    script = (
        "import sys; from lineclear.cli.main import main; main(['config']);"
        "import lineclear.cli.serve, lineclear.cli.chat;"
        "heavy = {'torch', 'uvicorn', 'tokenizers', 'transformers'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_config_prints_what_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--port", "9", "--no-batch-invariant", "--api-key", "a", "--api-key", "b"]) == 0
    printed = capsys.readouterr().out
    assert "flag --port" in printed
    assert "batch_invariant = false" in printed


def test_config_reads_the_file_that_a_flag_or_the_variable_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("port = 9\n")
    assert main(["config", "--config", str(path)]) == 0
    by_flag = capsys.readouterr().out
    monkeypatch.setenv("LINECLEAR_CONFIG", str(path))
    assert main(["config"]) == 0
    assert capsys.readouterr().out == by_flag
    assert f"file {path}" in by_flag


def test_a_users_mistake_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--port", "x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lineclear: error: port: got 'x'")
    assert error.count("\n") == 1


def test_a_model_that_is_not_there_is_a_users_mistake(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--model", str(tmp_path)]) == 2
    assert "lineclear-tiny" in capsys.readouterr().err
