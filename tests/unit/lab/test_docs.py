"""Each command of docs/lab.md, run as it stands there on something tiny."""

import json
import re
import shlex
from pathlib import Path

import pytest

from lineclear.cli.main import main

DOCS = Path(__file__).parents[3] / "docs/lab.md"


def commands(first: str) -> list[list[str]]:
    """The documented command lines that begin so."""
    blocks = re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(f"lineclear {first}")]
    assert lines
    return [shlex.split(line)[1:] for line in lines]


def test_trace_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"timestamp": at, "session": "s", "duration_s": 2, "request": {"prompt": "x" * 1000 + "y" * at}}
        for at in (1, 2)
    ]
    Path("requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for command in commands("trace"):
        assert main(command) == 0
    printed = capsys.readouterr().out
    assert "bad_rows: 0\nrequests: 2\n" in printed
    assert "hit_rate_unbounded: 0.3825\n" in printed
    assert "concurrency_max: 2 requests\n" in printed
    assert Path("requests.svg").read_text().startswith("<?xml")
