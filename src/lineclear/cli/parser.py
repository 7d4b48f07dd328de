"""argparse with the errors of the rest of Lineclear: one line, what is wrong, what was probably meant."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lineclear.cli.exit_codes import EXIT_USER_ERROR
from lineclear.config.suggestion import did_you_mean


class CommandParser(argparse.ArgumentParser):
    """The parser of a command. Commands below it are parsed by the same class, and each names its own flags."""

    def __init__(self, **keywords: Any) -> None:  # noqa: ANN401 - whatever argparse takes
        super().__init__(**keywords, allow_abbrev=False)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - argparse would take any object to fill
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and refuse what is unknown: the parser that finds it knows which flags there are."""
        parsed, unknown = super().parse_known_args(args, argparse.Namespace() if namespace is None else namespace)
        if unknown:
            self.error(self._describe_unknown(unknown[0]))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Print one line and exit; the usage would be longer than a screen."""
        print(f"lineclear: error: {message}; `{self.prog} --help` lists what there is", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)

    def _describe_unknown(self, argument: str) -> str:
        name = argument.partition("=")[0]
        if not name.startswith("-"):
            return f"unexpected argument: {argument}"
        return f"unknown flag: {name}{did_you_mean(name, self._option_string_actions, prefix='--')}"
