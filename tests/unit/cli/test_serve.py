import json
from pathlib import Path

import pytest

from lineclear.base.errors import ConfigError
from lineclear.cli.serve import NO_DRAFT_LAYER, _check_length, fit_checkpoint
from lineclear.cli.supervisor import seats
from lineclear.config.components import EngineConfig, HandoffConfig, RanksConfig, ServeConfig
from lineclear.config.resolve import ConfigFile, resolve


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Without draft layer and chat template."""
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"num_nextn_predict_layers": 0}))
    return directory


def test_drafting_is_turned_off_where_the_checkpoint_has_no_draft_layer(checkpoint: Path) -> None:
    fitted = fit_checkpoint(resolve({"model": str(checkpoint)}, None, {}))
    assert fitted.config.engine.draft_tokens == 0
    assert fitted.notices == (NO_DRAFT_LAYER,)
    assert not fitted.facts.has_chat_template


@pytest.mark.parametrize("source", ["flag", "variable", "file"])
@pytest.mark.parametrize("draft_tokens", [3, 1])
def test_drafts_that_were_asked_for_are_left_to_be_refused(checkpoint: Path, source: str, draft_tokens: int) -> None:
    flags = {"model": str(checkpoint)} | ({"draft_tokens": str(draft_tokens)} if source == "flag" else {})
    file = ConfigFile("f", {"draft_tokens": draft_tokens}) if source == "file" else None
    environment = {"LINECLEAR_DRAFT_TOKENS": str(draft_tokens)} if source == "variable" else {}
    fitted = fit_checkpoint(resolve(flags, file, environment))
    assert fitted.config.engine.draft_tokens == draft_tokens
    assert not fitted.notices


def test_who_wants_no_drafts_is_not_told(checkpoint: Path) -> None:
    assert not fit_checkpoint(resolve({"model": str(checkpoint), "draft_tokens": "0"}, None, {})).notices


def test_the_bundled_model_drafts() -> None:
    fitted = fit_checkpoint(resolve({}, None, {}))
    assert fitted.config.engine.draft_tokens == 3
    assert not fitted.notices
    assert fitted.config.gateway.served_model_name == "lineclear-tiny"


def test_a_model_is_called_by_its_directory(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint)
    fitted = fit_checkpoint(resolve({"model": "."}, None, {}))
    assert fitted.config.source.model == str(checkpoint)
    assert fitted.config.gateway.served_model_name == "mine"


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lineclear-tiny"):
        fit_checkpoint(resolve({"model": str(tmp_path)}, None, {}))


def test_a_folder_whose_sockets_would_have_too_long_names_is_refused(tmp_path: Path) -> None:
    colocated = ServeConfig(handoff=HandoffConfig(colocated=True))
    with pytest.raises(ConfigError, match=r"TMPDIR: got .*, allowed: a folder whose name has at most \d+ bytes"):
        _check_length(tmp_path / ("x" * 100) / "lineclear-abcdefgh", colocated)
    folder = Path("/" + "x" * 70) / "lineclear-abc"
    _check_length(folder, colocated)
    with pytest.raises(ConfigError, match="at most 70 bytes"):
        _check_length(folder, ServeConfig(handoff=HandoffConfig(prefill=100)))
    of_ranks = ServeConfig(handoff=HandoffConfig(prefill=100), ranks=RanksConfig(cp=2))
    with pytest.raises(ConfigError, match="at most 58 bytes"):
        _check_length(folder, of_ranks)
    _check_length(Path("/tmp/lineclear-abcdefgh"), of_ranks)


def test_prefill_instances_are_refused_where_kv_cannot_be_moved() -> None:
    with pytest.raises(ConfigError, match="prefill: got 1, allowed: auto on cuda"):
        ServeConfig(engine=EngineConfig(device="cuda"), handoff=HandoffConfig(prefill=1))
    with pytest.raises(ConfigError, match="prefill: got 2, allowed: auto: with colocated"):
        HandoffConfig(colocated=True, prefill=2)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (ServeConfig(), ["decode-0", "prefill-0"]),
        (ServeConfig(handoff=HandoffConfig(prefill=2)), ["decode-0", "prefill-0", "prefill-1"]),
        (ServeConfig(handoff=HandoffConfig(colocated=True)), ["worker-0"]),
        (ServeConfig(handoff=HandoffConfig(colocated=True, decode=2)), ["worker-0", "worker-1"]),
        (ServeConfig(engine=EngineConfig(device="cuda")), ["worker-0"]),
    ],
)
def test_prefill_and_decode_are_apart_unless_told_or_impossible(config: ServeConfig, names: list[str]) -> None:
    assert [seat.worker_id for seat in seats(config)] == names
    assert sum(seat.memory_share for seat in seats(config)) == pytest.approx(1)
