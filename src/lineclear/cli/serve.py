"""`lineclear serve`: the gateway and a worker under one supervisor."""

import argparse
import asyncio
import dataclasses
import tempfile
from pathlib import Path

from rich.console import Console

from lineclear.base.errors import ConfigError
from lineclear.bundled import CHECKPOINTS, checkpoint_path
from lineclear.cli.announcer import Announcer
from lineclear.cli.option_flags import add_option_flags, resolve_arguments
from lineclear.cli.supervisor import Supervisor
from lineclear.config.components import ModelSource, ServeConfig
from lineclear.transport.endpoint import UnixEndpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every option there is."""
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until stopped."""
    config = locate_model(resolve_arguments(arguments).config)
    with tempfile.TemporaryDirectory(prefix="lineclear-") as folder:  # mode 0700: only this user's workers connect
        endpoint = UnixEndpoint(str(Path(folder) / "control"))
        return asyncio.run(_supervise(config, str(endpoint)))


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


async def _supervise(config: ServeConfig, control_endpoint: str) -> int:
    return await Supervisor(config, Announcer(config, Console()), control_endpoint).run()
