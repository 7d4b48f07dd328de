"""What the command line reads of a checkpoint, held against what the engine and the gateway read of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from lineclear.cli.checkpoint_facts import CheckpointFacts, read_checkpoint_facts
from lineclear.gateway.served_model import load_text_assets
from lineclear.model.config import load_config
from tests.golden.checkpoints import BASE_CONFIG
from tests.unit.gateway.tiny_text import build_tokenizer

NAMED_TEMPLATES = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]


@pytest.mark.parametrize("num_draft_layers", [None, 0, 1])
def test_the_draft_layer_is_seen_as_the_engine_sees_it(tmp_path: Path, num_draft_layers: int | None) -> None:
    config: dict[str, Any] = BASE_CONFIG | {"num_nextn_predict_layers": num_draft_layers}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_checkpoint_facts(tmp_path).has_draft_layer == load_config(tmp_path).has_mtp
    del config["num_nextn_predict_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_checkpoint_facts(tmp_path).has_draft_layer == load_config(tmp_path).has_mtp


@pytest.mark.parametrize("declared", [None, "t", 5, [], NAMED_TEMPLATES, NAMED_TEMPLATES[:1], [{"name": "default"}]])
@pytest.mark.parametrize("has_own_file", [False, True])
def test_the_template_is_seen_as_the_gateway_sees_it(tmp_path: Path, declared: object, has_own_file: bool) -> None:
    (tmp_path / "tokenizer.json").write_bytes(build_tokenizer())
    if has_own_file:
        (tmp_path / "chat_template.jinja").write_text("x")
    assert_template_agrees(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": declared}))
    assert_template_agrees(tmp_path)


def assert_template_agrees(directory: Path) -> None:
    assert read_checkpoint_facts(directory).has_chat_template == (load_text_assets(directory).template is not None)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_what_is_broken_is_left_to_the_process_that_needs_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    assert read_checkpoint_facts(tmp_path) == CheckpointFacts()
