"""`lineclear serve`: the gateway and a worker under one supervisor."""

import argparse
import asyncio
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lineclear.base.errors import ConfigError
from lineclear.bundled import CHECKPOINTS, checkpoint_path
from lineclear.cli.announcer import Announcer
from lineclear.cli.checkpoint_facts import CheckpointFacts, read_checkpoint_facts
from lineclear.cli.option_flags import add_option_flags, resolve_arguments
from lineclear.cli.run_folder import run_folder
from lineclear.cli.supervisor import Supervisor, control_socket, peer_socket, rank_socket
from lineclear.config.components import ModelSource, ServeConfig
from lineclear.config.resolve import Resolved, Source
from lineclear.transport.endpoint import MAX_UNIX_PATH_LEN

NO_DRAFT_LAYER = "drafting is off: the checkpoint has no draft layer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every option there is."""
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until stopped."""
    fitted = fit_checkpoint(resolve_arguments(arguments))
    with run_folder() as folder:
        _check_length(folder, fitted.config)
        return asyncio.run(_supervise(fitted, folder))


def _check_length(folder: Path, config: ServeConfig) -> None:
    """Raise ConfigError if sockets in the run folder would have names that are too long, also those of later lives."""
    last = f"prefill-{config.num_prefill - 1}"
    longest = control_socket(folder)
    if config.num_prefill:
        longest = (
            peer_socket(folder, last, 9999) if config.ranks.cp == 1 else f"{rank_socket(folder, last, 9999)}.store"
        )
    if len(os.fsencode(longest)) > MAX_UNIX_PATH_LEN:
        parent = folder.parent
        num_bytes = MAX_UNIX_PATH_LEN - len(os.fsencode(longest)) + len(os.fsencode(parent))
        raise ConfigError("TMPDIR", parent, f"a folder whose name has at most {num_bytes} bytes: sockets lie in it")


@dataclass(frozen=True)
class FittedConfig:
    """A configuration whose checkpoint was found, and what was decided for the user, one line each."""

    config: ServeConfig
    facts: CheckpointFacts
    notices: tuple[str, ...]


def fit_checkpoint(resolved: Resolved) -> FittedConfig:
    """Find the model, and turn drafting off where the checkpoint has no draft layer and nobody asked for drafts.

    Raises:
        ConfigError: There is no such model, or it has fewer layers than there are ranks.
    """
    config = locate_model(resolved.config)
    facts = read_checkpoint_facts(Path(config.source.model))
    if facts.num_kv_layers is not None and config.ranks.cp > facts.num_kv_layers:
        allowed = f"at most {facts.num_kv_layers}: the model has so many layers of KV, and each process sends its own"
        raise ConfigError("cp", config.ranks.cp, allowed)
    is_default = resolved.origins["draft_tokens"].source is Source.DEFAULT
    if facts.has_draft_layer or not is_default or not config.engine.draft_tokens:
        return FittedConfig(config, facts, ())
    engine = dataclasses.replace(config.engine, draft_tokens=0)
    return FittedConfig(dataclasses.replace(config, engine=engine), facts, (NO_DRAFT_LAYER,))


def locate_model(config: ServeConfig) -> ServeConfig:
    """Return the configuration with the model as an absolute directory, and with the name clients call it by.

    Raises:
        ConfigError: There is no such model.
    """
    model = config.source.model
    directory = checkpoint_path(model) if model in CHECKPOINTS else Path(model)
    if not (directory / "config.json").is_file():
        names = ", ".join(CHECKPOINTS)
        raise ConfigError("model", model, f"a directory with a config.json, or a bundled model ({names})")
    name = config.gateway.served_model_name or (model if model in CHECKPOINTS else directory.resolve().name)
    return dataclasses.replace(
        config,
        source=ModelSource(model=str(directory.resolve())),
        gateway=dataclasses.replace(config.gateway, served_model_name=name),
    )


async def _supervise(fitted: FittedConfig, folder: Path) -> int:
    announcer = Announcer(fitted.config, Console(), fitted.facts, fitted.notices)
    return await Supervisor(fitted.config, announcer, folder).run()
