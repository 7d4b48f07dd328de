"""The `lineclear` command: finds the subcommand, imports its module, runs it, and turns errors into exit codes.

A command's module has `add_arguments(parser)` and `run(arguments) -> int`. Only the module of the command that was
named is imported, so that `lineclear --help` never waits for torch. argparse, because it is there, starts in
milliseconds, and the options themselves are derived from `lineclear.config` anyway.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from lineclear import __version__
from lineclear.base.errors import ConfigError, LineclearError
from lineclear.cli.exit_codes import EXIT_INTERRUPTED, EXIT_USER_ERROR
from lineclear.cli.parser import CommandParser
from lineclear.config.suggestion import did_you_mean


@dataclass(frozen=True)
class CommandEntry:
    """Where a command lives; one without a summary is internal and not listed."""

    module: str
    summary: str | None


COMMANDS = {
    "serve": CommandEntry("lineclear.cli.serve", "Serve a model over HTTP."),
    "chat": CommandEntry("lineclear.cli.chat", "Chat with a running server."),
    "config": CommandEntry("lineclear.cli.config", "Print every option's value and where it came from."),
    "eval": CommandEntry("lineclear.cli.eval", "Print the bundled model's figures on held-out data."),
    "prove": CommandEntry("lineclear.cli.prove", "Explore every interleaving of the handoff."),
    "gateway": CommandEntry("lineclear.cli.gateway", None),
    "worker": CommandEntry("lineclear.cli.worker", None),
}

TOP_FLAGS = ("-h", "--help", "--version")
"""What may stand in the place of a command."""


class CommandModule(Protocol):
    """What the module of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declare the command's arguments."""
        ...

    def run(self, arguments: argparse.Namespace, /) -> int:
        """Run the command and return its exit code."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _run_command(argv)
    except LineclearError as error:
        print(f"lineclear: error: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run_command(argv: Sequence[str]) -> int:
    parser, subparsers = _build_parser(argv[:1])
    command = _load_command(argv)
    if command is not None:
        command.add_arguments(subparsers[argv[0]])
    arguments = parser.parse_args(argv)
    if command is None:
        parser.print_help()
        return EXIT_USER_ERROR
    return command.run(arguments)


def _build_parser(named: Sequence[str]) -> tuple[CommandParser, dict[str, CommandParser]]:
    """The parser and those of its commands; an internal command has one only when it was named."""
    parser = CommandParser(
        prog="lineclear",
        description="Serves long-context language models to coding agents and keeps their answers right under load.",
    )
    parser.add_argument("--version", action="version", version=f"lineclear {__version__}")
    group = parser.add_subparsers(title="commands", metavar="COMMAND")
    subparsers = {
        name: group.add_parser(name, description=entry.summary, **_listing(entry))
        for name, entry in COMMANDS.items()
        if entry.summary or name in named
    }
    return parser, subparsers


def _listing(entry: CommandEntry) -> dict[str, Any]:
    """The help, if there is one: argparse lists only commands that have a help text."""
    return {"help": entry.summary} if entry.summary else {}


def _load_command(argv: Sequence[str]) -> CommandModule | None:
    """The module of the command that is named; nothing where none is.

    Raises:
        ConfigError: There is no such command.
    """
    if not argv or argv[0] in TOP_FLAGS:
        return None
    entry = COMMANDS.get(argv[0])
    if entry is None:
        public = [name for name, each in COMMANDS.items() if each.summary]
        allowed = f"a command first: {', '.join(public)}{did_you_mean(argv[0], public)}"
        raise ConfigError("command", argv[0], allowed)
    return cast("CommandModule", importlib.import_module(entry.module))
