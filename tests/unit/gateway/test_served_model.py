"""What the gateway reads of a checkpoint, and what it makes of files that make no sense."""

import json
from pathlib import Path

import pytest

from lineclear.base.errors import CheckpointError
from lineclear.gateway.conversation import Conversation, Message
from lineclear.gateway.served_model import SamplingDefaults, load_text_assets, serve_model
from lineclear.model.digest import model_digest
from tests.unit.gateway.scripted_worker import model_facts
from tests.unit.gateway.tiny_text import build_tokenizer

CONVERSATION = Conversation((Message("user", "x"),))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(build_tokenizer())
    return tmp_path


def test_a_checkpoint_without_template_or_defaults(checkpoint: Path) -> None:
    assets = load_text_assets(checkpoint)
    assert assets.template is None
    assert assets.defaults == SamplingDefaults()


def test_texts_alone_have_no_digest(checkpoint: Path) -> None:
    assert load_text_assets(checkpoint).model_digest == ""
    (checkpoint / "config.json").write_text("{}")
    assert load_text_assets(checkpoint).model_digest == ""
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    assert load_text_assets(checkpoint).model_digest == model_digest(checkpoint)


def test_template_of_its_own_file_comes_first(checkpoint: Path) -> None:
    (checkpoint / "tokenizer_config.json").write_text('{"chat_template": "old"}')
    (checkpoint / "chat_template.jinja").write_text("new {{ eos_token }}")
    template = load_text_assets(checkpoint).template
    assert template is not None
    assert template.render(CONVERSATION).text == "new "


@pytest.mark.parametrize(
    "declared",
    ["{{ bos_token }}", [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "{{ bos_token }}"}]],
)
def test_template_and_tokens_of_the_tokenizers_configuration(checkpoint: Path, declared: object) -> None:
    config = {"chat_template": declared, "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    template = load_text_assets(checkpoint).template
    assert template is not None
    assert template.render(CONVERSATION).text == "<s>"


def test_recommended_sampling(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.95, "do_sample": true}')
    assert load_text_assets(checkpoint).defaults == SamplingDefaults(temperature=0.6, top_p=0.95)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "nonsense"),
        ("tokenizer_config.json", "[]"),
        ("generation_config.json", '{"temperature": "warm"}'),
        ("generation_config.json", '{"top_p": 3}'),
        ("chat_template.jinja", "{% if %}"),
    ],
)
def test_files_that_make_no_sense_are_named(checkpoint: Path, name: str, content: str) -> None:
    (checkpoint / name).write_text(content)
    with pytest.raises(CheckpointError) as raised:
        load_text_assets(checkpoint)
    assert name.split(".", maxsplit=1)[0] in str(raised.value)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_text_assets(tmp_path)


def test_sequences_are_as_long_as_model_and_pool_allow(checkpoint: Path) -> None:
    assets = load_text_assets(checkpoint)
    for max_model_len, num_blocks, expected in ((100, 1000, 100), (4096, 10, 160)):
        model = serve_model("m", assets, model_facts(max_model_len=max_model_len, num_blocks=num_blocks))
        assert (model.max_sequence_len, model.max_prompt_len) == (expected, expected - 1)
