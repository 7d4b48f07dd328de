"""A fault in a service of real processes: it fires, the sanitizer finds it, nobody gets a wrong answer."""

import json
from pathlib import Path

import pytest

from lineclear.cli.main import main

PLAN = """
name = "bits that flip"
requests = 60
num_prompts = 4
prompt_len = [60, 90]
max_tokens = 12
options = ["--max-total-tokens", "4096"]
[grid]
faults = [["bit_flips"]]
clients = [4]
ratio = ["0:1"]
sanitizer = ["full"]
"""


@pytest.mark.e2e
def test_bits_that_flip_are_found_before_anybody_reads_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN)
    command = ["ablate", str(plan), "--out", str(out), "--json", str(tmp_path / "figures.json")]
    assert main(command) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    name = "bit_flips_4clients_0to1_full"
    assert figures[f"{name}_fired_bit_flips"] > 0
    assert figures[f"{name}_sanitizer_write_after_seal"] > 0
    assert figures[f"{name}_corrupted"] == 0
    assert 0 < figures[f"{name}_answers"] < 60
    assert "bit_flips" in (out / "report.html").read_text()
    assert "KV sanitizer: write_after_seal: device block" in (out / name / "d0.log").read_text()
    capsys.readouterr()
    (out / "references.jsonl").unlink()
    assert main(command) == 0  # everything is there: nothing is started
    assert not (out / "references.jsonl").exists()
