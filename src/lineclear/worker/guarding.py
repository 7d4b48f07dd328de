"""The guard of a worker that generates, from its configuration and the file of baselines."""

from pathlib import Path

from lineclear.base.errors import ConfigError
from lineclear.config.components import ServeConfig
from lineclear.guard.baselines import Baselines, decode_baselines
from lineclear.guard.guard import Guard
from lineclear.model.digest import model_digest

BASELINES_NAME = "guard.json"
"""Beside the model's weights, unless the configuration names another file."""


def build_guard(config: ServeConfig) -> Guard | None:
    """Build the guard; None where nothing is judged.

    Raises: ConfigError if its baselines are missing, damaged or of something else.
    """
    if config.guard.guard == "off":
        return None
    if config.guard.guard_detector == "seed":
        return Guard(config.guard.guard, None)
    return Guard(config.guard.guard, load_baselines(config))


def baselines_path(config: ServeConfig) -> Path:
    """Where the baselines are."""
    named = config.guard.guard_baselines
    return Path(config.source.model) / BASELINES_NAME if named is None else Path(named)


def load_baselines(config: ServeConfig) -> Baselines:
    """Read the baselines of the configured model.

    Raises: ConfigError as `build_guard`.
    """
    path = baselines_path(config)
    try:
        content = path.read_bytes()
    except OSError as error:
        allowed = f"a file of baselines, or --guard-detector seed, which needs none: {error}"
        raise ConfigError("guard_baselines", str(path), allowed) from None
    model = model_digest(Path(config.source.model))
    return decode_baselines(content, path=str(path), model=model, draft_tokens=config.engine.draft_tokens)
