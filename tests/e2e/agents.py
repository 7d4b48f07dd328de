"""Coding agents as users install them, headless, against a real gateway process whose model is a script.

The script is a model that calls the agent's shell once and then says what it saw: so a turn is only finished if the
call reached the agent as one, and its result came back as one.
"""

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lineclear.bundled import checkpoint_path
from lineclear.gateway.tokenization import Tokenization, load_tokenization
from lineclear.model.digest import model_digest
from lineclear.protocol import wire
from tests.e2e.processes import PATIENCE_SECONDS, running
from tests.unit.gateway.scripted_worker import ScriptedWorker, model_facts

FOLDER = Path(__file__).parents[2] / ".clients"
"""Where `make clients` puts them."""

MODEL = "glm-5"
COMMAND = "echo line-$((6*7))-clear"
RESULT = "line-42-clear"
"""What the command prints, and what it does not say itself."""

TASK = "Run a small command and report."
STEP_LEN = 3


def find_agent(name: str) -> Path | None:
    """The program of an agent, or `None` if it is not installed."""
    path = FOLDER / "node_modules" / ".bin" / name
    return path if path.exists() else None


@dataclass
class ShellModel:
    """A model that calls one shell tool.

    Args:
        tool: the agent's name for its shell.
        arguments: beside the command.
    """

    tool: str
    command_key: str = "command"
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    prompts: list[list[int]] = field(default_factory=list[list[int]])
    """Those of the agent's own turns; titles and the like are asked for without tools."""
    tokenization: Tokenization = field(default_factory=lambda: load_tokenization(checkpoint_path()))

    def __call__(self, submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        """Answer a prompt, a few tokens a step."""
        token_ids = self.tokenization.encode_prompt(self._answer(submitted), add_special_tokens=False)
        pieces = [token_ids[start : start + STEP_LEN] for start in range(0, len(token_ids), STEP_LEN)]
        sequence_id = submitted.sequence_id
        steps = [wire.SequenceOutput(sequence_id=sequence_id, token_ids=piece) for piece in pieces]
        return [*steps, wire.SequenceOutput(sequence_id=sequence_id, finish_reason="stop")]

    def _answer(self, submitted: wire.SubmitSequence) -> str:
        vocabulary = self.tokenization.vocabulary
        prompt = b"".join(map(vocabulary.token_bytes, submitted.prompt_token_ids)).decode(errors="replace")
        if f'"name": "{self.tool}"' not in prompt:
            return self._opening(prompt) + "A small command"
        self.prompts.append(submitted.prompt_token_ids)
        if "<|observation|>" not in prompt:
            return self._opening(prompt) + "Running it." + self._call()
        seen = RESULT if RESULT in prompt else "nothing"
        return self._opening(prompt) + f"The shell said {seen}."

    def _opening(self, prompt: str) -> str:
        return "I look first.</think>" if prompt.endswith("<think>") else ""

    def _call(self) -> str:
        arguments = {self.command_key: COMMAND} | dict(self.arguments)
        written = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
        return f"<tool_call>{self.tool}{written}</tool_call>"


@contextmanager
def serving(model: ShellModel) -> Iterator[str]:
    """A gateway process with this model; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        control = f"127.0.0.1:{server.getsockname()[1]}"
    facts = model_facts(
        vocab_size=model.tokenization.vocabulary.size,
        max_model_len=131_072,
        num_blocks=16_384,
        decisive={"model": model_digest(checkpoint_path())},
    )
    command = ["-m", "lineclear", "gateway", "--control", control, "--port", "0", "--served-model-name", MODEL]
    with running(command) as gateway:
        url = gateway.wait_for(r"gateway on (http://[^,]+)")[1]
        worker = ScriptedWorker(f"tcp:{control}", script=model, facts=facts)
        try:
            gateway.wait_for("workers: worker-0")
            yield url
        finally:
            worker.kill()


def run_agent(command: Sequence[str | Path], home: Path, environment: Mapping[str, str]) -> str:
    """Run an agent to its end in a folder of its own; returns all that it printed."""
    workspace = home / "workspace"
    workspace.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    run = subprocess.run(
        list(map(str, command)),
        cwd=workspace,
        env={**kept, "HOME": str(home), "NO_PROXY": "127.0.0.1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    return run.stdout
