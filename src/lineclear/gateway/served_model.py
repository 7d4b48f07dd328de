"""The model as the gateway sees it: its text side from the checkpoint, its limits from a worker's hello."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from lineclear.base.errors import CheckpointError
from lineclear.gateway.conversation import JsonObject
from lineclear.gateway.template import ChatTemplate
from lineclear.gateway.tokenization import Tokenization
from lineclear.model.digest import model_digest
from lineclear.protocol.wire import ModelFacts

T = TypeVar("T")


class SamplingDefaults(msgspec.Struct, frozen=True):
    """What `generation_config.json` recommends, used where a request says nothing."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None


@dataclass(frozen=True)
class TextAssets:
    """What the gateway reads of a checkpoint."""

    tokenization: Tokenization
    template: ChatTemplate | None
    defaults: SamplingDefaults
    model_digest: str = ""
    """Of the checkpoint that they are from; empty where its weights are not here."""


@dataclass(frozen=True)
class ServedModel:
    """A model that requests can be prepared for."""

    name: str
    assets: TextAssets
    vocab_size: int
    max_sequence_len: int

    @property
    def max_prompt_len(self) -> int:
        """The longest prompt that leaves room for one token."""
        return self.max_sequence_len - 1


def serve_model(name: str, assets: TextAssets, facts: ModelFacts) -> ServedModel:
    """The model that a worker runs: sequences as long as the model takes and the KV cache holds."""
    max_sequence_len = min(facts.max_model_len, facts.num_blocks * facts.block_size)
    return ServedModel(name, assets, facts.vocab_size, max_sequence_len)


def load_text_assets(directory: Path) -> TextAssets:
    """Read tokenizer, chat template and sampling defaults of a checkpoint.

    Raises:
        CheckpointError: A file is missing or makes no sense.
    """
    tokenization = _load_tokenization(directory / "tokenizer.json")
    tokenizer_config: JsonObject = _read_json(directory / "tokenizer_config.json", dict[str, Any], {})
    source = _template_source(directory, tokenizer_config)
    template = None
    if source is not None:
        template = ChatTemplate(source, _special_tokens(tokenizer_config), tokenization.control_literals)
    defaults = _read_json(directory / "generation_config.json", SamplingDefaults, SamplingDefaults())
    return TextAssets(tokenization, template, defaults, _digest_if_complete(directory))


def _digest_if_complete(directory: Path) -> str:
    """Digest a checkpoint; a folder with the texts alone, which is enough for a gateway, has none."""
    is_complete = (directory / "config.json").exists() and any(directory.glob("*.safetensors"))
    return model_digest(directory) if is_complete else ""


def _load_tokenization(path: Path) -> Tokenization:
    try:
        return Tokenization(path.read_bytes())
    except OSError as error:
        raise CheckpointError("tokenizer.json", str(path), f"a readable file ({error.strerror})") from error
    except Exception as error:  # the tokenizers library raises nothing more specific
        raise CheckpointError("tokenizer.json", str(path), f"a Hugging Face tokenizer ({error})") from error


def _read_json(path: Path, kind: type[T], missing: T) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return missing
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(path.name, str(path), str(error)) from error


def _template_source(directory: Path, tokenizer_config: JsonObject) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    declared = tokenizer_config.get("chat_template")
    if isinstance(declared, list):
        named = {entry.get("name"): entry.get("template") for entry in declared if isinstance(entry, dict)}
        declared = named.get("default")
    return declared if isinstance(declared, str) else None


def _special_tokens(tokenizer_config: JsonObject) -> JsonObject:
    tokens: JsonObject = {}
    for name, value in tokenizer_config.items():
        literal = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(literal, str):
            tokens[name] = literal
    return tokens
