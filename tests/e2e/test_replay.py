"""`lineclear replay` against a server process: what is sent, counted, cancelled, interrupted and gone on with."""

import json
import shlex
import signal
from pathlib import Path

import pytest

from bench.bench_replay_schedule import write_trace
from lineclear.cli.main import main
from lineclear.lab.files import TraceWriter
from lineclear.trace.events import Arrived, Cancelled, Ended, Header
from tests.e2e.processes import running

pytestmark = pytest.mark.e2e


def replayed(trace: Path, url: str, *more: str) -> tuple[int, dict[str, float]]:
    figures = trace.with_suffix(".json")
    code = main(
        ["replay", str(trace), "--against", url, "--out", str(trace.with_suffix(".out")), "--json", str(figures), *more]
    )
    return code, json.loads(figures.read_text())


def test_all_requests_are_sent_at_their_times(tmp_path: Path) -> None:
    trace = tmp_path / "even.trace"
    write_trace(trace, rate=100, seconds=1, prompt_len=100)
    with running(["-m", "bench.replay.null_server"]) as server:
        url = server.wait_for(r"(http://\S+)")[1]
        code, figures = replayed(trace, url, "--speed", "2", "--until", "0.5")
        assert (code, figures["requests"], figures["served"], figures["errors"]) == (0, 50, 50, 0)
        assert (figures["prompt_tokens"], figures["output_tokens"], figures["hit_rate"]) == (5000, 1000, 0.5)
        lines = [json.loads(line) for line in trace.with_suffix(".out").read_text().splitlines()]
        assert sorted(each["due_s"] for each in lines) == pytest.approx([idx / 200 for idx in range(50)])
        assert all(each["sent_s"] >= each["due_s"] - 0.001 for each in lines)
        code, figures = replayed(trace, url, "--speed", "2")
        assert (code, figures["served"], len(trace.with_suffix(".out").read_text().splitlines())) == (0, 100, 100)


def test_who_cancels_leaves_and_ctrl_c_reports(tmp_path: Path) -> None:
    trace = tmp_path / "t.trace"
    writer = TraceWriter(trace, Header(version=1, block_len=4, source="test"))
    for idx, end in enumerate([Cancelled(at_s=1, request="0", output_len=1), Ended(request="1", output_len=5)]):
        writer.write(Arrived(at_s=idx / 10, request=str(idx), prompt_len=8, blocks=(1, 2)))
        writer.write(end)
    writer.finish()
    out, figures = tmp_path / "t.out", tmp_path / "t.json"
    with running(["-m", "bench.replay.null_server", "--hang"]) as server:
        url = server.wait_for(r"(http://\S+)")[1]
        command = ["-m", "lineclear", "replay", str(trace), "--against", url, "--out", str(out), "--json", str(figures)]
        with running(command) as program:
            server.wait_for("asked")  # once at least: on a loaded machine one may be cancelled before it is asked
            while not (out.exists() and out.read_text()):
                assert program.process.poll() is None
            program.signal(signal.SIGINT)
            assert program.wait() == 130
    assert json.loads(out.read_text())["is_cancelled"]
    assert json.loads(figures.read_text())["cancelled"] == 1
    with running(["-m", "bench.replay.null_server"]) as server:
        code, found = replayed(trace, server.wait_for(r"(http://\S+)")[1])
    assert (code, found["cancelled"], found["served"]) == (0, 1, 1)


def test_errors_are_counted_and_named(tmp_path: Path) -> None:
    trace = tmp_path / "t.trace"
    write_trace(trace, rate=100, seconds=0.02, prompt_len=64)
    code, figures = replayed(trace, "http://127.0.0.1:1")
    assert (code, figures["errors"], figures["served"]) == (1, 2, 0)
    assert "no answer: " in trace.with_suffix(".out").read_text()


def test_the_documented_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/lab.md").read_text()
    line = next(line for line in text.splitlines() if line.startswith("lineclear replay "))
    write_trace(tmp_path / "requests.trace", rate=100, seconds=0.02, prompt_len=64)
    with running(["-m", "bench.replay.null_server"]) as server:
        url = server.wait_for(r"(http://\S+)")[1]
        monkeypatch.chdir(tmp_path)
        assert main(shlex.split(line.replace("http://127.0.0.1:8000", url))[1:]) == 0
    assert json.loads(Path("figures.json").read_text())["served"] == 2
