"""Imports and trace files through the command line: packed sources, bad rows, cut files."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from lineclear.base.errors import TraceError
from lineclear.cli.main import main
from lineclear.lab.files import TraceReader
from lineclear.lab.imports import ImportPlan, import_trace
from lineclear.trace.events import Arrived
from lineclear.trace.requests import fold_requests

ROWS = [
    {"timestamp": 5000 + 500 * idx, "input_length": 600, "output_length": 3, "hash_ids": [0, idx]} for idx in range(4)
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def imported(source: Path, name: str, out: Path, *more: str) -> int:
    return main(["trace", "import", str(source), "--format", name, "--out", str(out), *more])


def test_times_begin_at_the_earliest_arrival(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(reversed(LINES.splitlines(keepends=True))))
    for name in ("plain.trace", "packed.trace.gz"):
        assert imported(tmp_path / "rows.jsonl", "mooncake", tmp_path / name) == 0
        reader = TraceReader(tmp_path / name)
        assert (reader.header.block_len, reader.header.source) == (512, "mooncake")
        assert sorted(each.arrived.at_s for each in fold_requests(reader.events())) == [0.0, 0.5, 1.0, 1.5]
    assert gzip.decompress((tmp_path / "packed.trace.gz").read_bytes()) == (tmp_path / "plain.trace").read_bytes()


def test_bad_rows_are_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text(LINES + "\n\nnonsense\n" + '{"timestamp": -1}\n')
    assert imported(tmp_path / "rows.jsonl", "mooncake", tmp_path / "t.trace", "--json", str(tmp_path / "f.json")) == 1
    printed = capsys.readouterr()
    assert "rows: 6\nbad_rows: 2\nrequests: 4\n" in printed.out
    assert json.loads((tmp_path / "f.json").read_text()) == {"rows": 6, "bad_rows": 2, "requests": 4}
    assert "bad row: rows.jsonl, line 7: row: got 'nonsense" in printed.err
    assert "bad row: rows.jsonl, line 8: hash_ids: got None" in printed.err


def test_a_source_without_any_row_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text("nonsense\n")
    assert imported(tmp_path / "rows.jsonl", "azure", tmp_path / "t.trace") == 2
    assert "allowed: at least one row of the format azure" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("name", ["none.jsonl", "damaged.jsonl.gz", "damaged.tar.xz"])
def test_sources_that_cannot_be_read(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name != "none.jsonl":
        (tmp_path / name).write_bytes(gzip.compress(LINES.encode())[:-12])
    assert imported(tmp_path / name, "mooncake", tmp_path / "t.trace") == 2
    assert name in capsys.readouterr().err
    assert not (tmp_path / "t.trace").exists()


def test_an_archive_and_a_folder_are_read_as_their_files(tmp_path: Path) -> None:
    turn = {"t": 0, "in": 64, "out": 1, "hash_ids": [1]}
    folder = tmp_path / "sessions"
    folder.mkdir()
    with tarfile.open(tmp_path / "sessions.tar.xz", "w:xz") as archive:
        for name in ("a.json", "b.json"):
            raw = json.dumps({"requests": [turn]}, indent=1).encode()
            (folder / name).write_bytes(raw)
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    for source in (folder, tmp_path / "sessions.tar.xz"):
        assert imported(source, "sessions", tmp_path / "t.trace", "--stagger-s", "30") == 0
        arrived = [each for each in TraceReader(tmp_path / "t.trace").events() if isinstance(each, Arrived)]
        assert [(each.session, each.at_s) for each in arrived] == [("s1", 0.0), ("s2", 30.0)]
        assert imported(source, "sessions", tmp_path / "one.trace", "--rows", "1") == 0
        assert len(list(TraceReader(tmp_path / "one.trace").events())) == 2


def test_a_cut_file_is_used_up_to_its_last_whole_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(LINES)
    path = tmp_path / "t.trace"
    assert imported(tmp_path / "rows.jsonl", "mooncake", path) == 0
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole), 7):
        path.write_bytes(whole[:end])
        assert len(list(TraceReader(path).events())) == whole[first:end].count(b"\n")


def test_a_damaged_line_within_is_no_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.trace").write_bytes(b'{"event":"header","version":1,"block_len":4,"source":"x"}\n{"event"\n')
    with pytest.raises(TraceError):
        list(TraceReader(tmp_path / "t.trace").events())
    assert main(["trace", "stats", str(tmp_path / "t.trace")]) == 2
    assert "line 2: event" in capsys.readouterr().err


@pytest.mark.skipif(not os.environ.get("LINECLEAR_DATA"), reason="needs LINECLEAR_DATA")
@pytest.mark.parametrize(
    ("name", "source", "num_rows", "num_requests"),
    [
        ("mooncake", "mooncake/conversation_first6000.jsonl.gz", 50, 50),
        ("azure", "azure-2023/AzureLLMInferenceTrace_code.csv", 50, 49),
        ("sessions", "claude-code-sessions/sessions.tar.xz", 5, 484),
        ("transcripts", "agent-transcripts/miniswe_10.tar.xz", 50, 50),
    ],
)
def test_real_traces(name: str, source: str, num_rows: int, num_requests: int, tmp_path: Path) -> None:
    bad: list[str] = []
    plan = ImportPlan(Path(os.environ["LINECLEAR_DATA"]) / "data" / source, name, max_rows=num_rows)
    done = import_trace(plan, tmp_path / "t.trace", bad.append, lambda _pass, _rows: None)
    assert (done.num_bad_rows, bad) == (0, [])
    assert done.num_requests == num_requests == len(list(fold_requests(TraceReader(tmp_path / "t.trace").events())))
