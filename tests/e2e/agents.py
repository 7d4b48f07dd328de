"""Coding agents as users install them, headless, against a real gateway process whose model is a script.

The script is a model that calls the agent's shell once and then says what it saw: so a turn is only finished if the
call reached the agent as one, and its result came back as one.
"""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lineclear.bundled import checkpoint_path
from lineclear.gateway.tokenization import Tokenization, load_tokenization
from lineclear.model.digest import model_digest
from lineclear.protocol import wire
from tests.e2e.processes import PATIENCE_SECONDS, Program, running
from tests.unit.gateway.scripted_worker import ScriptedWorker, model_facts

FOLDER = Path(__file__).parents[2] / ".clients"
"""Where `make clients` puts them."""

MODEL = "glm-5"
COMMAND = "echo line-$((6*7))-clear"
RESULT = "line-42-clear"
"""What the command prints, and what it does not say itself."""

THOUGHT = "I look first."

TASK = "Run a small command and report."
STEP_LEN = 3


def find_agent(name: str) -> Path | None:
    """The program of an agent, or `None` if it is not installed."""
    paths = (FOLDER / "node_modules" / ".bin" / name, FOLDER / name / "bin" / name)
    return next((path for path in paths if path.exists()), None)


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
    farewell: str = ""
    """A word that ends the task, said by the shell before the report; most agents have none."""
    breaks_off: bool = False
    """The first answer of a turn has no end."""
    prompts: list[list[int]] = field(default_factory=list[list[int]])
    """Those of the agent's own turns; titles and the like are asked for without tools."""
    has_broken_off: threading.Event = field(default_factory=threading.Event)
    tokenization: Tokenization = field(default_factory=lambda: load_tokenization(checkpoint_path()))

    def __call__(self, submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        """Answer a prompt, a few tokens a step."""
        token_ids = self.tokenization.encode_prompt(self._answer(submitted), add_special_tokens=False)
        pieces = [token_ids[start : start + STEP_LEN] for start in range(0, len(token_ids), STEP_LEN)]
        sequence_id = submitted.sequence_id
        steps = [wire.SequenceOutput(sequence_id=sequence_id, token_ids=piece) for piece in pieces]
        if self.breaks_off and self.prompts:
            self.breaks_off = False
            self.has_broken_off.set()
            return steps[:2]
        return [*steps, wire.SequenceOutput(sequence_id=sequence_id, finish_reason="stop")]

    def _answer(self, submitted: wire.SubmitSequence) -> str:
        prompt = self.text_of(submitted.prompt_token_ids)
        if f'"name": "{self.tool}"' not in prompt:
            return self._opening(prompt) + "A small command"
        self.prompts.append(submitted.prompt_token_ids)
        if "<|observation|>" not in prompt:
            return self._opening(prompt) + "Running it." + self._call(COMMAND)
        report = f"The shell said {RESULT if RESULT in prompt else 'nothing'}."
        if self.farewell:
            return self._opening(prompt) + "Done." + self._call(f"echo {self.farewell} && echo '{report}'")
        return self._opening(prompt) + report

    def written(self) -> str:
        """What the model writes first, thinking and call included."""
        return f"<think>{THOUGHT}</think>Running it." + self._call(COMMAND)

    def text_of(self, prompt: list[int]) -> str:
        """A prompt as text."""
        return b"".join(map(self.tokenization.vocabulary.token_bytes, prompt)).decode(errors="replace")

    def _opening(self, prompt: str) -> str:
        return f"{THOUGHT}</think>" if prompt.endswith("<think>") else f"<think>{THOUGHT}</think>"

    def _call(self, command: str) -> str:
        arguments = {self.command_key: command} | dict(self.arguments)
        written = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments.items())
        return f"<tool_call>{self.tool}{written}</tool_call>"


class Service:
    """A gateway process and the model behind it."""

    def __init__(self, gateway: Program, url: str, control: str, model: ShellModel, limits: Mapping[str, int]) -> None:
        self.url = url
        self._gateway = gateway
        self._control = control
        self._model = model
        self._limits = limits
        self.worker = self._start_worker(1)

    def replace_worker(self) -> None:
        """The worker dies, and its next life comes."""
        self.worker.kill()
        self.worker = self._start_worker(self.worker.life + 1)

    def start_spare(self) -> ScriptedWorker:
        """Another worker, which gets what the first one has no room for, or can serve no more."""
        spare = self._start(1, "worker-1")
        self._gateway.wait_for("workers: worker-0, worker-1")
        return spare

    def _start_worker(self, life: int) -> ScriptedWorker:
        worker = self._start(life, "worker-0")
        self._gateway.wait_for("workers: worker-0")
        return worker

    def _start(self, life: int, worker_id: str) -> ScriptedWorker:
        facts: dict[str, object] = {
            "vocab_size": self._model.tokenization.vocabulary.size,
            "max_model_len": 131_072,
            "num_blocks": 16_384,
            "max_running": 8,
            "decisive": {"model": model_digest(checkpoint_path())},
        }
        return ScriptedWorker(
            f"tcp:{self._control}",
            script=self._model,
            facts=model_facts(**facts | self._limits),
            life=life,
            worker_id=worker_id,
        )


@contextmanager
def serving(model: ShellModel, *options: str, **limits: int) -> Iterator[Service]:
    """A gateway process with options, and this model behind it with facts of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        control = f"127.0.0.1:{server.getsockname()[1]}"
    command = ["-m", "lineclear", "gateway", "--control", control, "--port", "0", "--served-model-name", MODEL]
    with running([*command, *options]) as gateway:
        url = gateway.wait_for(r"gateway on (http://[^,]+)")[1]
        service = Service(gateway, url, control, model, limits)
        try:
            yield service
        finally:
            service.worker.kill()


def run_agent(command: Sequence[str | Path], home: Path, environment: Mapping[str, str], *, fails: bool = False) -> str:
    """Run an agent to its end in a folder of its own; returns all that it printed; `fails`: by its exit code."""
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
    assert (run.returncode != 0) == fails, run.stdout
    return run.stdout
