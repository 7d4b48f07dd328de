"""Coding agents run a command and report: each through the API that it speaks, unmodified.

Those that are not installed are skipped by name; `make clients` installs them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agents import MODEL, RESULT, TASK, ShellModel, find_agent, run_agent, serving

pytestmark = pytest.mark.e2e


def installed(name: str) -> Path:
    """The program; the test is skipped without it."""
    program = find_agent(name)
    if program is None:
        pytest.skip(f"{name} is not installed: make clients")
    return program


def check_turns(model: ShellModel, printed: str) -> None:
    """The turn was finished, and its second prompt began with its first."""
    assert f"The shell said {RESULT}." in printed, printed
    first, second = model.prompts
    assert second[: len(first) - 1] == first[:-1]


def test_claude_code(tmp_path: Path) -> None:
    program = installed("claude")
    model = ShellModel("Bash", arguments={"description": "Run a small command"})
    with serving(model) as url:
        environment = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        command = [program, "-p", TASK, "--output-format", "json", "--allowedTools", "Bash(echo:*)"]
        printed = run_agent(command, tmp_path, environment)
    check_turns(model, printed)
    report = json.loads(printed.splitlines()[-1])
    assert (report["is_error"], report["num_turns"]) == (False, 2)


def test_codex(tmp_path: Path) -> None:
    program = installed("codex")
    model = ShellModel("exec_command", "cmd")
    with serving(model) as url:
        provider = {"name": "lineclear", "base_url": f"{url}/v1", "env_key": "LINECLEAR_KEY", "wire_api": "responses"}
        options = [f"model_providers.lineclear.{name}={json.dumps(value)}" for name, value in provider.items()]
        command: list[Any] = [program, "exec", "--skip-git-repo-check", "-c", "model_provider=lineclear"]
        command += [word for option in options for word in ("-c", option)]
        printed = run_agent([*command, "-m", MODEL, TASK], tmp_path, {"LINECLEAR_KEY": "none"})
    check_turns(model, printed)


@pytest.mark.parametrize("package", ["@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "@ai-sdk/openai"])
def test_opencode(tmp_path: Path, package: str) -> None:
    program = installed("opencode")
    model = ShellModel("bash", arguments={"description": "Run a small command"})
    with serving(model) as url:
        provider = {
            "npm": package,
            "name": "Lineclear",
            "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
            "models": {MODEL: {"name": MODEL}},
        }
        config = tmp_path / ".config" / "opencode" / "opencode.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"provider": {"lineclear": provider}}))
        printed = run_agent([program, "run", "-m", f"lineclear/{MODEL}", TASK], tmp_path, {})
    check_turns(model, printed)
