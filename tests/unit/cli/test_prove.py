import json
from dataclasses import replace
from pathlib import Path

import pytest

from lineclear.cli import prove, prove_sanitizer, prove_tiers
from lineclear.cli.main import main
from lineclear.testing.handoff.controls import GUARDS, HARMLESS
from lineclear.testing.handoff.scenario import Scenario
from lineclear.testing.sanitizer.proof import run_arms
from lineclear.testing.tiers.killing import Killings
from lineclear.testing.tiers.proof import bounded_proof

PLANTED = ("clean", "late_writes")
SMALL = (Scenario("small", num_requests=1),)


@pytest.fixture(autouse=True)
def small_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "BOUNDED", SMALL)
    monkeypatch.setattr(prove, "FULL", SMALL * 2)
    monkeypatch.setattr(prove, "HARMLESS", ())
    monkeypatch.setattr(prove, "MUST_BE_FOUND", GUARDS[:2])


def test_the_figures_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert main(["prove", "handoff", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == ["states: 35", "violations: 0", "controls_found: 2", "controls: 2"]
    assert json.loads(path.read_text()) == {"states": 35, "violations": 0, "controls_found": 2, "controls": 2}


def test_tiers_are_compared_and_the_figures_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killings = Killings(1, 2, 0, 0, 4, 0, 96)
    monkeypatch.setattr(prove_tiers, "kill_writers", lambda _: killings)
    (arm,) = (arm for arm in bounded_proof().arms if arm.name == "copies_that_fail")
    small = replace(arm, num_requests=6)
    monkeypatch.setattr(prove_tiers, "bounded_proof", lambda: replace(bounded_proof(), arms=(small,)))
    path = tmp_path / "figures.json"
    assert main(["prove", "tiers", "--json", str(path)]) == 0
    assert "ok  copies_that_fail: 0 of 6 with wrong tokens\n" in capsys.readouterr().out
    figures = json.loads(path.read_text())
    assert (figures["copies_that_fail_requests"], figures["kills"], figures["kills_broken_files"]) == (6, 1, 0)
    monkeypatch.setattr(prove_tiers, "kill_writers", lambda _: replace(killings, num_broken=1))
    assert main(["prove", "tiers"]) == 1


def test_full_explores_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "handoff", "--full"]) == 0
    assert "states: 70\n" in capsys.readouterr().out


def test_scripts_are_printed_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "handoff", "--scripts"]) == 0
    assert "    10. write 0 of r0.0 for e0.1 into block 0 of memory 0 lands\n" in capsys.readouterr().out


def test_a_control_that_is_not_found_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "MUST_BE_FOUND", (GUARDS[0], replace(HARMLESS[4], expected=("P1",))))
    assert main(["prove", "handoff"]) == 1
    printed = capsys.readouterr().out
    assert f"BAD {HARMLESS[4].name}" in printed
    assert "controls_found: 1\ncontrols: 2\n" in printed


def test_a_violation_is_a_failure_and_its_script_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove, "HARMLESS", (replace(GUARDS[0], expected=()),))
    assert main(["prove", "handoff"]) == 1
    printed = capsys.readouterr().out
    assert "violations: 1\n" in printed
    assert " ✗  P1: a write landed in a block that another handoff has\n" in printed


def test_transcripts_are_written(tmp_path: Path) -> None:
    assert main(["prove", "transcripts", "--directory", str(tmp_path)]) == 0
    assert (tmp_path / "handoff_healthy.txt").exists()


def test_the_sanitizer_finds_what_is_planted_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prove_sanitizer, "run_arms", lambda _clean, _faulty: run_arms(24, 30, names=PLANTED))
    path = tmp_path / "figures.json"
    assert main(["prove", "sanitizer", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert figures["clean_checks"] > 100
    assert figures["late_writes_planted"] == figures["late_writes_told"] > 3
    assert "ok  clean: 0 faults found in 18 requests, 0 wrong answers\n" in capsys.readouterr().out


def test_a_sanitizer_that_says_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (clean,) = run_arms(4, 1, names=("clean",))
    silent = replace(clean, arm=replace(clean.arm, plants=True), num_planted=1)
    monkeypatch.setattr(prove_sanitizer, "run_arms", lambda _clean, _faulty: iter((clean, silent)))
    assert main(["prove", "sanitizer"]) == 1
