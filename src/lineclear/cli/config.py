"""`lineclear config`: prints the resolved options as TOML that `--config` reads, and where each came from."""

import argparse
import sys

from lineclear.cli.option_flags import add_option_flags, resolve_arguments
from lineclear.config.render import render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `serve`."""
    add_option_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the resolved options."""
    sys.stdout.write(render(resolve_arguments(arguments)))
    return 0
