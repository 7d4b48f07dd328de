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
from typing import Protocol, cast

from lineclear import __version__
from lineclear.base.errors import ConfigError, LineclearError
from lineclear.cli.exit_codes import EXIT_INTERRUPTED, EXIT_USER_ERROR
from lineclear.cli.parser import CommandParser
from lineclear.config.suggestion import did_you_mean


@dataclass(frozen=True)
class CommandEntry:
    """Where a command lives, and what it is for."""

    module: str
    summary: str


COMMANDS = {
    "serve": CommandEntry("lineclear.cli.serve", "Serve a model over HTTP."),
    "chat": CommandEntry("lineclear.cli.chat", "Chat with a running server."),
    "quarantine": CommandEntry("lineclear.cli.quarantine", "Show or release blocks that wait for a lost process."),
    "config": CommandEntry("lineclear.cli.config", "Print every option's value and where it came from."),
    "eval": CommandEntry("lineclear.cli.eval", "Print the bundled model's figures on held-out data."),
    "replay": CommandEntry("lineclear.cli.replay", "Send the requests of a trace to a server at their times."),
    "trace": CommandEntry("lineclear.cli.trace", "Import traces of load, and print and draw their figures."),
    "guard": CommandEntry("lineclear.cli.guard", "Learn and show how drafts of a model fare in healthy traffic."),
    "prove": CommandEntry("lineclear.cli.prove", "Explore every interleaving of the handoff."),
    "ablate": CommandEntry("lineclear.cli.ablate", "Count corrupted answers by fault, load and protection."),
    "judge": CommandEntry("lineclear.cli.judge", "Compare the answers of a run with the same requests alone."),
    "bench": CommandEntry("lineclear.cli.bench", "Measure how context-parallel ranks share KV, side by side."),
    "gateway": CommandEntry("lineclear.cli.gateway", "Serve HTTP for workers that are started apart."),
    "worker": CommandEntry("lineclear.cli.worker", "Start one worker, which joins a gateway."),
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
    parser, subparsers = _build_parser()
    command = _load_command(argv)
    if command is not None:
        command.add_arguments(subparsers[argv[0]])
    arguments = parser.parse_args(argv)
    if command is None:
        parser.print_help()
        return EXIT_USER_ERROR
    return command.run(arguments)


def _build_parser() -> tuple[CommandParser, dict[str, CommandParser]]:
    """The parser and those of its commands."""
    parser = CommandParser(
        prog="lineclear",
        description="Serves long-context language models to coding agents and keeps their answers right under load.",
    )
    parser.add_argument("--version", action="version", version=f"lineclear {__version__}")
    group = parser.add_subparsers(title="commands", metavar="COMMAND")
    subparsers = {
        name: group.add_parser(name, description=entry.summary, help=entry.summary) for name, entry in COMMANDS.items()
    }
    return parser, subparsers


def _load_command(argv: Sequence[str]) -> CommandModule | None:
    """The module of the command that is named; nothing where none is.

    Raises:
        ConfigError: There is no such command.
    """
    if not argv or argv[0] in TOP_FLAGS:
        return None
    entry = COMMANDS.get(argv[0])
    if entry is None:
        allowed = f"a command first: {', '.join(COMMANDS)}{did_you_mean(argv[0], COMMANDS)}"
        raise ConfigError("command", argv[0], allowed)
    return cast("CommandModule", importlib.import_module(entry.module))
