"""What `lineclear serve` must know of a checkpoint before its processes start, read without torch and tokenizers.

What cannot be read counts as there: the process that needs it says what is wrong with it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast


@dataclass(frozen=True)
class CheckpointFacts:
    """Which of the things that not every checkpoint has are there."""

    has_draft_layer: bool = True
    has_chat_template: bool = True
    num_kv_layers: int | None = None
    """Layers with KV, the draft layer included; None if the checkpoint does not say."""


COMPLETE = CheckpointFacts()
"""A checkpoint that lacks nothing."""


def read_checkpoint_facts(directory: Path) -> CheckpointFacts:
    """Look into a checkpoint's JSON files."""
    config = _read_object(directory / "config.json")
    return CheckpointFacts(
        has_draft_layer=config is None or config.get("num_nextn_predict_layers") not in (None, 0),
        has_chat_template=_has_chat_template(directory),
        num_kv_layers=None if config is None else _num_kv_layers(config),
    )


def _num_kv_layers(config: dict[str, Any]) -> int | None:
    num_layers, num_draft_layers = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers") or 0
    if isinstance(num_layers, int) and isinstance(num_draft_layers, int):
        return num_layers + num_draft_layers
    return None


def _has_chat_template(directory: Path) -> bool:
    """Whether the gateway will find a template: in a file of its own, or declared by the tokenizer's configuration."""
    path = directory / "tokenizer_config.json"
    if (directory / "chat_template.jinja").exists():
        return True
    if not path.exists():
        return False
    tokenizer_config = _read_object(path)
    if tokenizer_config is None:
        return True
    declared = tokenizer_config.get("chat_template")
    if isinstance(declared, list):
        entries = [cast("dict[str, Any]", entry) for entry in cast("list[Any]", declared) if isinstance(entry, dict)]
        declared = {entry.get("name"): entry.get("template") for entry in entries}.get("default")
    return isinstance(declared, str)


def _read_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; `None` if there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None
