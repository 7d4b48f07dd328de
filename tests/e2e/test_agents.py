"""Coding agents run a command and report, each through the API that it speaks, unmodified.

Those that are not installed are skipped by name; `make clients` installs them.
"""

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.agents import MODEL, RESULT, TASK, Service, ShellModel, find_agent, run_agent, serving

pytestmark = pytest.mark.e2e


@dataclass(frozen=True)
class Agent:
    """How an agent is told to do the task, and what its shell is called."""

    name: str
    program: str
    model: Callable[[], ShellModel]
    command: Callable[[Path, str, Path], tuple[list[Any], dict[str, str]]]
    """From the program, the server's URL and the home folder: the command, and its environment."""


def claude_code(program: Path, url: str, _home: Path) -> tuple[list[Any], dict[str, str]]:
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return [program, "-p", TASK, "--output-format", "json", "--allowedTools", "Bash(echo:*)"], environment


def codex(program: Path, url: str, _home: Path) -> tuple[list[Any], dict[str, str]]:
    provider = {"name": "lineclear", "base_url": f"{url}/v1", "env_key": "LINECLEAR_KEY", "wire_api": "responses"}
    options = [f"model_providers.lineclear.{name}={json.dumps(value)}" for name, value in provider.items()]
    command: list[Any] = [program, "exec", "--skip-git-repo-check", "-c", "model_provider=lineclear"]
    command += [word for option in options for word in ("-c", option)]
    return [*command, "-m", MODEL, TASK], {"LINECLEAR_KEY": "none"}


def opencode(package: str) -> Callable[[Path, str, Path], tuple[list[Any], dict[str, str]]]:
    """One agent for all three APIs."""

    def command(program: Path, url: str, home: Path) -> tuple[list[Any], dict[str, str]]:
        provider = {
            "npm": package,
            "name": "Lineclear",
            "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
            "models": {MODEL: {"name": MODEL}},
        }
        config = home / ".config" / "opencode" / "opencode.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"provider": {"lineclear": provider}}))
        return [program, "run", "-m", f"lineclear/{MODEL}", TASK], {}

    return command


def mini(program: Path, url: str, home: Path) -> tuple[list[Any], dict[str, str]]:
    environment = {
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(home),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
    }
    return [program, "-y", "--exit-immediately", "-l", "0", "-m", f"openai/{MODEL}", "-t", TASK], environment


FAREWELL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
DESCRIBED = {"description": "Run a small command"}
CLAUDE_CODE = Agent("claude-code", "claude", lambda: ShellModel("Bash", arguments=DESCRIBED), claude_code)
CODEX = Agent("codex", "codex", lambda: ShellModel("exec_command", "cmd"), codex)
AGENTS = [
    CLAUDE_CODE,
    CODEX,
    Agent("mini-swe-agent", "mini", lambda: ShellModel("bash", farewell=FAREWELL), mini),
    *(
        Agent(f"opencode-{package}", "opencode", lambda: ShellModel("bash", arguments=DESCRIBED), opencode(package))
        for package in ("@ai-sdk/openai-compatible", "@ai-sdk/anthropic", "@ai-sdk/openai")
    ),
]
each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


@pytest.fixture
def program(agent: Agent) -> Path:
    """The agent's program; the test is skipped without it."""
    found = find_agent(agent.program)
    if found is None:
        pytest.skip(f"{agent.program} is not installed: make clients")
    return found


def run(agent: Agent, program: Path, service: Service, home: Path, *, fails: bool = False) -> str:
    """What the agent prints."""
    command, environment = agent.command(program, service.url, home)
    return run_agent(command, home, environment, fails=fails)


@each_agent
def test_an_agent_runs_a_command_and_reports(agent: Agent, program: Path, tmp_path: Path) -> None:
    model = agent.model()
    with serving(model) as service:
        printed = run(agent, program, service, tmp_path)
    assert f"The shell said {RESULT}." in printed, printed
    first, second = model.prompts
    assert second[: len(first) - 1] == first[:-1]  # the second turn finds the first one in the prefix cache,
    assert model.written() in model.text_of(second)  # and what the model thought, said and called


@each_agent
def test_an_agent_asks_again_when_its_stream_breaks_off(agent: Agent, program: Path, tmp_path: Path) -> None:
    model = agent.model()
    model.breaks_off = True
    with serving(model) as service:

        def replace_worker() -> None:
            model.has_broken_off.wait()
            service.replace_worker()

        killer = threading.Thread(target=replace_worker)
        killer.start()
        try:
            printed = run(agent, program, service, tmp_path)
        finally:
            model.has_broken_off.set()
            killer.join()
    assert f"The shell said {RESULT}." in printed, printed
    assert model.prompts[0] == model.prompts[1]


@pytest.mark.parametrize("agent", [AGENTS[0], AGENTS[4]], ids=lambda agent: agent.name)
def test_an_agent_of_anthropics_api_asks_again_at_once_where_another_worker_serves(
    agent: Agent, program: Path, tmp_path: Path
) -> None:
    """It is told the error, and repeats the request, in one piece."""
    model = agent.model()
    model.breaks_off = True
    with serving(model) as service:
        spare = service.start_spare()
        killer = threading.Thread(target=lambda: (model.has_broken_off.wait(), service.worker.kill()))
        killer.start()
        try:
            printed = run(agent, program, service, tmp_path)
        finally:
            model.has_broken_off.set()
            killer.join()
            spare.kill()
    assert f"The shell said {RESULT}." in printed, printed
    assert model.prompts[0] == model.prompts[1]


@each_agent
def test_an_agent_waits_for_a_full_server(agent: Agent, program: Path, tmp_path: Path) -> None:
    model = agent.model()
    with serving(model, "--max-waiting", "0", max_running=1) as service:
        service.worker.script = None  # who comes first stays
        with occupy(service) as connection:
            service.worker.next_submitted()
            service.worker.script = model
            leaver = threading.Thread(
                target=leave_when_somebody_was_refused, args=(connection, service.url), daemon=True
            )
            leaver.start()
            printed = run(agent, program, service, tmp_path)
            leaver.join()
    assert f"The shell said {RESULT}." in printed, printed


def occupy(service: Service) -> socket.socket:
    """A client whose answer does not end."""
    address = httpx.URL(service.url)
    connection = socket.create_connection((address.host, address.port or 0))
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
    connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def leave_when_somebody_was_refused(connection: socket.socket, url: str) -> None:
    with httpx.Client(base_url=url) as client:
        while "lineclear_admission_rejected_total{" not in client.get("/metrics").text:
            pass
    connection.close()


@pytest.mark.parametrize(
    ("agent", "words"),
    [(CLAUDE_CODE, "Prompt is too long"), (CODEX, "ran out of room")],
    ids=lambda value: str(value)[:20],
)
def test_an_agent_knows_when_its_prompt_is_too_long(agent: Agent, program: Path, words: str, tmp_path: Path) -> None:
    with serving(agent.model(), max_model_len=4096) as service:
        assert words in run(agent, program, service, tmp_path, fails=True)
