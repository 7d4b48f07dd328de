"""Results, references and the judge's command, against a server that answers from a table."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from lineclear.base.errors import ConfigError
from lineclear.cli.main import main
from lineclear.lab.reference import PAUSES_SECONDS, NoReferenceError, ServerReferences
from lineclear.lab.results import Result, answer_text, read_results, write_results

ANSWERS = {"one": "alpha beta gamma", "two": "delta epsilon zeta eta theta", "three": "iota"}


def completion(text: str, *, rivals: bool) -> dict[str, Any]:
    pieces = [piece + " " for piece in text.split(" ")]
    pieces[-1] = pieces[-1].rstrip()
    logprobs = {
        "tokens": pieces,
        "token_logprobs": [-0.5] * len(pieces),
        "top_logprobs": [{piece: -0.5, "omega ": -0.52, "psi ": -4.0} for piece in pieces],
    }
    return {"choices": [{"text": text, "logprobs": logprobs if rivals else None}]}


class _Table(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)  # type: ignore[attr-defined]
        text = ANSWERS.get(asked["prompt"])
        if self.server.busy:  # type: ignore[attr-defined]
            self.send_error(self.server.busy.pop(0))  # type: ignore[attr-defined]
            return
        body = json.dumps({} if text is None else completion(text, rivals=True)).encode()
        self.send_response(400 if text is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Table) as table:
        table.asked = []  # type: ignore[attr-defined]
        table.busy = []  # type: ignore[attr-defined]
        thread = Thread(target=table.serve_forever)
        thread.start()
        yield table
        table.shutdown()
        thread.join()


def result(id_: str, prompt: str, text: str, **known: Any) -> Result:
    return Result(
        id=id_, request={"prompt": prompt, "temperature": 0, "max_tokens": 8, "stream": True}, text=text, **known
    )


RESULTS = [
    result("same", "one", ANSWERS["one"], known_answer=ANSWERS["one"]),
    result("tie", "one", "alpha omega nu"),
    result("leak", "one", "alpha beta epsilon zeta eta theta iota delta epsilon zeta eta theta"),
    result("donor", "two", ANSWERS["two"]),
    result("failed", "three", "", error="503"),
    result("refused", "nobody knows", "x"),
    Result(id="sampled", request={"prompt": "one", "temperature": 1}, text="beta"),
]


def test_a_run_is_judged_and_goes_on_where_it_was(
    server: ThreadingHTTPServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kept = tmp_path / "results.jsonl", tmp_path / "references.jsonl"
    write_results(path, RESULTS)
    url = f"http://127.0.0.1:{server.server_port}"
    judgements = tmp_path / "judgements.jsonl"
    command = ["judge", str(path), "--url", url, "--references", str(kept), "--json", str(tmp_path / "figures.json")]
    assert main([*command, "--judgements", str(judgements)]) == 1
    out = capsys.readouterr().out
    assert "leak: corruption after 11 characters" in out
    assert "has text of request donor: 'epsilon zeta eta theta'" in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    outcomes = {name: figures[f"answers_{name}"] for name in ("same", "tie", "corruption", "failed", "uncompared")}
    assert outcomes == {"same": 2, "tie": 1, "corruption": 1, "failed": 1, "uncompared": 2}
    assert (figures["known_answers"], figures["known_answers_right"], figures["foreign"]) == (1, 1, 1)
    assert figures["corrupted_in_10000_low"] < 2500 < figures["corrupted_in_10000_high"]
    assert [json.loads(line)["request_id"] for line in judgements.read_text().splitlines()][:2] == ["same", "tie"]
    asked = server.asked  # type: ignore[attr-defined]
    assert len(asked) == 4  # each different request once
    assert all(each["logprobs"] == 5 and "stream" not in each for each in asked)
    kept.write_bytes(kept.read_bytes() + b'{"key": "cut sho')
    assert main(command) == 1
    assert len(asked) == 4


def test_a_server_that_is_busy_is_asked_again_and_what_it_says_then_counts(server: ThreadingHTTPServer) -> None:
    server.busy = [429, 503, 500]  # type: ignore[attr-defined]
    pauses: list[float] = []
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}") as client:
        body = ServerReferences(client, pause=pauses.append).body(RESULTS[0].request)
    assert body is not None
    assert body["choices"][0]["text"] == ANSWERS["one"]
    assert pauses == list(PAUSES_SECONDS[:3])


def test_a_server_that_fails_all_the_time_refuses_nothing_and_nothing_is_kept(
    server: ThreadingHTTPServer, tmp_path: Path
) -> None:
    server.busy = [503] * (len(PAUSES_SECONDS) + 1)  # type: ignore[attr-defined]
    kept = tmp_path / "references.jsonl"
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}") as client:
        references = ServerReferences(client, kept, pause=lambda _: None)
        with pytest.raises(NoReferenceError, match="503"):
            references.body(RESULTS[0].request)
        assert not kept.exists()
        assert references.body(RESULTS[0].request) is not None


def test_a_run_of_which_nothing_can_be_compared_is_no_success(
    server: ThreadingHTTPServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    write_results(path, [each for each in RESULTS if each.id in {"failed", "refused", "sampled"}])
    assert main(["judge", str(path), "--url", f"http://127.0.0.1:{server.server_port}"]) == 3
    assert "nothing was compared" in capsys.readouterr().err


def test_a_tie_is_corruption_where_no_margin_is_allowed(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write_results(path, RESULTS[:2])
    url = f"http://127.0.0.1:{server.server_port}"
    assert main(["judge", str(path), "--url", url]) == 0
    assert main(["judge", str(path), "--url", url, "--tie-margin", "0"]) == 1


def test_a_line_that_is_no_result_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"id": "a", "request": {}, "text": ""}\n{"id": 7}\n')
    with pytest.raises(ConfigError, match="line 2"):
        list(read_results(path))
    path.write_text('{"id": "a", "request": {}, "text": ""}\n' * 2)
    with pytest.raises(ConfigError, match="line 2"):
        list(read_results(path))
    assert main(["judge", str(tmp_path / "nothing")]) == 2
    assert "RESULTS" in capsys.readouterr().err


def test_tool_calls_are_part_of_an_answer() -> None:
    call = {"function": {"name": "read", "arguments": '{"path": "a"}'}}
    message = {"content": None, "tool_calls": [call]}
    assert answer_text({"choices": [{"message": message}]}) == json.dumps([["read", '{"path": "a"}']])
    assert answer_text({"choices": [{"text": "plain"}]}) == "plain"
