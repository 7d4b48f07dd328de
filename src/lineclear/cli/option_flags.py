"""Flags derived from the option definitions, and the resolution of what was given."""

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lineclear.config.definition import Definition, definitions_of
from lineclear.config.resolve import COMPONENTS, CONFIG_FILE_VARIABLE, Resolved, read_config_file, resolve

_METAVARS: dict[type, str] = {int: "N", float: "X", str: "TEXT"}


class _NoEffect(argparse.Action):
    """Refuses a flag that other processes read; in a file or a variable, which all may share, it is left alone."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - the interface is argparse's
        values: str | Sequence[Any] | None,  # noqa: ARG002 - the interface is argparse's
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(f"{option_string} has no effect on `{parser.prog}`, only on other processes")


def options_of(*components: str) -> frozenset[str]:
    """The names of all options of some components."""
    return frozenset(each.name for component in components for each in definitions_of(COMPONENTS[component]))


def add_option_flags(parser: argparse.ArgumentParser, names: Collection[str] = options_of(*COMPONENTS)) -> None:
    """Add `--config` and a flag for every option, grouped by component.

    Args:
        parser: the command's.
        names: of the options that the command's process reads; flags of the others are refused.
    """
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file with options; also {CONFIG_FILE_VARIABLE}. Flags win over it."
    )
    for name, component in COMPONENTS.items():
        group = parser.add_argument_group(name)
        for definition in definitions_of(component):
            if definition.name in names:
                _add_flag(group, definition)
            else:
                _refuse_flag(group, definition)


def resolve_arguments(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Resolved:
    """Resolve the flags that were given, the environment and the file that either names.

    Raises:
        ConfigError: A value is not allowed, or a name is unknown.
    """
    path = arguments.config or environment.get(CONFIG_FILE_VARIABLE)
    file = read_config_file(Path(path)) if path else None
    flags = {name: value for name, value in vars(arguments).items() if name in options_of(*COMPONENTS)}
    return resolve(flags, file, environment)


def _add_flag(group: Any, definition: Definition) -> None:  # noqa: ANN401 - argparse's group type is private
    shown = definition.option.none_word if definition.default is None else definition.default
    limits = f"{definition.option.allowed}. " if definition.option.allowed else ""
    keywords: dict[str, Any] = {
        "dest": definition.name,
        "default": argparse.SUPPRESS,
        "help": f"{definition.option.help} {limits[:1].upper()}{limits[1:]}Default: {_show(shown)}.".replace("%", "%%"),
    }
    if definition.scalar is bool:
        group.add_argument(definition.flag, action=argparse.BooleanOptionalAction, **keywords)
        return
    if definition.is_list:
        keywords["action"] = "append"
    group.add_argument(definition.flag, metavar=_metavar(definition), **keywords)


def _refuse_flag(group: Any, definition: Definition) -> None:  # noqa: ANN401 - argparse's group type is private
    spellings, nargs = [definition.flag], None
    if definition.scalar is bool:
        spellings, nargs = [definition.flag, f"--no-{definition.flag[2:]}"], 0
    hidden = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    group.add_argument(*spellings, dest=definition.name, action=_NoEffect, nargs=nargs, **hidden)


def _metavar(definition: Definition) -> str:
    if definition.choices:
        return "|".join(definition.choices)
    return _METAVARS[definition.scalar]


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value == () else str(value)
