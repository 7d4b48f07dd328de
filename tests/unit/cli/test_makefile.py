"""The two commands that a newcomer starts with say what they are about to do, and pip is not silenced."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("target", ["serve", "test"])
def test_setting_up_begins_and_ends_with_a_line_for_people(tmp_path: Path, target: str) -> None:
    venv = tmp_path / "venv"
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={venv}"]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert steps[0].startswith(f'echo "Setting up {venv}')
    assert "minutes" in steps[0]
    assert f'echo "{venv} is ready to {target}."' in steps
    assert not [step for step in steps if "--quiet" in step or " -q" in step]
