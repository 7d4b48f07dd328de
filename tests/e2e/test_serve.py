"""`lineclear serve` as a user runs it: real gateway, real worker, the bundled model."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from lineclear.bundled import checkpoint_path
from tests.e2e.processes import PATIENCE_SECONDS, Program, children_by_command, descendants, running, wait_for_end

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc and pidfd"),
]

READY = r"lineclear ready on (http://\S+)"
PROMPT = {"role": "user", "content": "Count to one thousand."}
ENDLESS = {"messages": [PROMPT], "max_tokens": 6000, "stream": True, "ignore_eos": True}


@contextmanager
def serving(*flags: str) -> Iterator[tuple[Program, httpx.Client]]:
    command = ["-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", "8192", *flags]
    with (
        running(command) as program,
        httpx.Client(base_url=program.wait_for(READY)[1], timeout=PATIENCE_SECONDS) as client,
    ):
        yield program, client


def answer(client: httpx.Client, max_tokens: int = 8) -> str:
    body = {"messages": [PROMPT], "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    response = client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    return json.dumps(response.json()["choices"][0]["message"])


def stop(program: Program) -> None:
    below = descendants(program.process.pid)
    program.signal(signal.SIGINT)
    assert program.wait() == 0
    for pid in below:
        wait_for_end(pid)


def test_a_person_can_follow_what_is_printed() -> None:
    with serving() as (program, client):
        assert client.get("/ready").status_code == 200
        command = program.wait_for(r"try: (curl .*)")[1]
        run = subprocess.run([*shlex.split(command), "--silent", "--fail"], capture_output=True, check=True)
        assert json.loads(run.stdout)["choices"][0]["message"]["role"] == "assistant"
        assert "KV cache 8,192 tokens" in program.text
        stop(program)
        assert not re.search("Traceback|ERROR", program.text), program.text


def test_chat_in_the_terminal() -> None:
    with serving("--api-key", "secret") as (program, client):
        chat = subprocess.run(
            [sys.executable, "-m", "lineclear", "chat", "--url", str(client.base_url.join("/v1")), "--max-tokens", "8"],
            input="hello\nagain\n/exit\n",
            env={**os.environ, "LINECLEAR_API_KEY": "secret"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert chat.stdout.count("tokens/s") == 2
        assert chat.stdout.count("accept_length") == 2
        refused = subprocess.run(
            [sys.executable, "-m", "lineclear", "chat", "--url", str(client.base_url)],
            input="",
            capture_output=True,
            text=True,
            check=False,
        )
        assert refused.returncode == 2
        stop(program)


def test_the_first_ctrl_c_finishes_what_runs_and_refuses_the_rest() -> None:
    with serving() as (program, client):
        with client.stream("POST", "/v1/chat/completions", json=ENDLESS | {"max_tokens": 400}) as response:
            lines = response.iter_lines()
            next(lines)
            program.signal(signal.SIGINT)
            program.wait_for("finishing running requests")
            refusal = wait_until_refused(client)
            assert int(refusal.headers["retry-after"]) > 0
            assert refusal.json()["error"]["message"]
            chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert program.wait() == 0


def wait_until_refused(client: httpx.Client) -> httpx.Response:
    """The signal takes a moment to reach the gateway; until then requests are answered."""
    while True:
        response = client.post("/v1/chat/completions", json={"messages": [PROMPT], "max_tokens": 1})
        if response.status_code == 503:
            return response
        assert response.status_code == 200


def wait_for_content(lines: Iterator[str]) -> None:
    """Read until something of the answer has come; before that, a lost worker is made good by another."""
    while not read_content(next(lines)):
        pass


def read_content(line: str) -> str:
    chunk = json.loads(line.removeprefix("data: ") or "{}")
    return "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))


def test_draining_is_bounded() -> None:
    with serving("--drain-seconds", "0") as (program, client):
        with client.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
            lines = response.iter_lines()
            next(lines)
            program.signal(signal.SIGINT)
            assert any("server_draining" in line for line in lines)
        assert program.wait() == 0


def test_a_second_ctrl_c_stops_at_once() -> None:
    with serving() as (program, client):
        below = descendants(program.process.pid)
        with client.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
            next(response.iter_lines())
            program.signal(signal.SIGINT)
            program.wait_for("finishing running requests")
            program.signal(signal.SIGINT)
            assert program.wait() == 130
        for pid in below:
            wait_for_end(pid)


def test_a_worker_killed_in_the_middle_ends_its_stream_with_a_cut_and_service_resumes() -> None:
    with serving() as (program, client):
        before = answer(client)
        with client.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
            lines = response.iter_lines()
            wait_for_content(lines)
            os.kill(children_by_command(program.process.pid)["decode-0"], signal.SIGKILL)
            errors: list[str] = []
            with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012 - what came before the cut is kept
                for line in lines:
                    errors += [line.removeprefix(": error ")] if line.startswith(": error ") else []
        assert len(errors) == 1
        assert json.loads(errors[0])["error"]["message"]
        program.wait_for("starting life 2")
        program.wait_for(READY)
        assert answer(client) == before
        stop(program)


def test_a_worker_that_is_stuck_is_replaced() -> None:
    with serving("--heartbeat-seconds", "0.2", "--peer-timeout-seconds", "2") as (program, client):
        before = answer(client)
        os.kill(children_by_command(program.process.pid)["decode-0"], signal.SIGSTOP)
        program.wait_for("does not answer")
        program.wait_for(READY)
        assert answer(client) == before
        stop(program)


def test_stopping_while_the_model_loads() -> None:
    with running(["-m", "lineclear", "serve", "--port", "0"]) as program:
        program.wait_for("decode-0: loading")
        below = descendants(program.process.pid)
        program.signal(signal.SIGINT)
        assert program.wait() == 0
        for pid in below:
            wait_for_end(pid)
    assert "Traceback" not in program.text


def test_a_killed_gateway_comes_back_at_the_same_address() -> None:
    with serving() as (program, client):
        before = answer(client)
        os.kill(children_by_command(program.process.pid)["gateway"], signal.SIGKILL)
        assert program.wait_for(READY)[1] == str(client.base_url).rstrip("/")
        assert answer(client) == before
        stop(program)


def test_nothing_outlives_a_killed_supervisor_while_it_works() -> None:
    with serving() as (program, client), client.stream("POST", "/v1/chat/completions", json=ENDLESS) as response:
        next(response.iter_lines())
        below = descendants(program.process.pid)
        assert len(below) == 3
        program.signal(signal.SIGKILL)
        program.wait()
        for pid in below:
            wait_for_end(pid)


def test_nothing_outlives_a_supervisor_killed_while_the_processes_start() -> None:
    with running(["-m", "lineclear", "serve", "--port", "0"]) as program:
        program.wait_for("lineclear-tiny from")
        while len(below := descendants(program.process.pid)) < 2:
            pass
        program.signal(signal.SIGKILL)
        program.wait()
        for pid in below:
            wait_for_end(pid)


@pytest.fixture(scope="module")
def bare_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model without its draft layer and its chat template."""
    directory = tmp_path_factory.mktemp("checkpoints") / "bare"
    shutil.copytree(checkpoint_path(), directory)
    (directory / "chat_template.jinja").unlink()
    config = json.loads((directory / "config.json").read_text())
    draft_layer = f"model.layers.{config['num_hidden_layers']}."
    (directory / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(draft_layer)}
    save_file(kept, directory / "model.safetensors")
    return directory


def test_a_checkpoint_without_draft_layer_and_template_is_served_as_it_is(bare_checkpoint: Path) -> None:
    with serving("--model", str(bare_checkpoint)) as (program, _):
        command = program.wait_for(r"try: (curl .*)")[1]
        run = subprocess.run([*shlex.split(command), "--silent", "--fail"], capture_output=True, check=True)
        assert json.loads(run.stdout)["usage"]["completion_tokens"] > 0
        assert "drafting is off: the checkpoint has no draft layer\n" in program.output
        assert "0 draft tokens" in program.text
        stop(program)


def test_drafts_that_were_asked_for_are_refused_without_a_draft_layer(bare_checkpoint: Path) -> None:
    command = ["-m", "lineclear", "serve", "--port", "0", "--model", str(bare_checkpoint), "--draft-tokens", "3"]
    with running(command) as program:
        assert program.wait() == 2
    assert program.output[-1].startswith("lineclear: error: draft_tokens: got 3, allowed: 0")


def test_the_folder_of_a_killed_service_is_removed_by_the_next_one() -> None:
    # pytest's own folders have long names, and sockets in them would have longer ones.
    with tempfile.TemporaryDirectory() as folder:
        _check_that_folders_of_killed_services_are_removed(Path(folder))


def _check_that_folders_of_killed_services_are_removed(tmp_path: Path) -> None:
    command = ["-m", "lineclear", "serve", "--port", "0"]
    environment = {"TMPDIR": str(tmp_path)}
    with running(command, environment) as program:
        program.wait_for("lineclear-tiny from")
        program.signal(signal.SIGKILL)
        program.wait()
    (abandoned,) = tmp_path.glob("lineclear-*")
    with running(command, environment) as program:
        program.wait_for("lineclear-tiny from")
        assert not abandoned.exists()
        assert len(list(tmp_path.glob("lineclear-*"))) == 1


def test_a_port_in_use_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(["-m", "lineclear", "serve", "--port", str(port)]) as program:
            assert program.wait() == 2
    assert program.output[-1].startswith("lineclear: error:")
    assert f"127.0.0.1:{port}" in program.output[-1]
    assert "in use" in program.output[-1]
    assert "Traceback" not in program.text


def test_settings_that_the_model_cannot_meet_are_a_clear_error() -> None:
    with running(["-m", "lineclear", "serve", "--port", "0", "--max-model-len", "99999999"]) as program:
        assert program.wait() == 2
    assert program.output[-1].startswith("lineclear: error: max_model_len: got 99999999")
    assert "Traceback" not in program.text
