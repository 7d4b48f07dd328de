"""Flags derived from the option definitions, and the resolution of what was given."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lineclear.config.definition import Definition, definitions_of
from lineclear.config.resolve import COMPONENTS, CONFIG_FILE_VARIABLE, Resolved, read_config_file, resolve

_METAVARS: dict[type, str] = {int: "N", float: "X", str: "TEXT"}


def add_option_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every option, grouped by component."""
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file with options; also {CONFIG_FILE_VARIABLE}. Flags win over it."
    )
    for name, component in COMPONENTS.items():
        group = parser.add_argument_group(name)
        for definition in definitions_of(component):
            _add_flag(group, definition)


def resolve_arguments(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Resolved:
    """Resolve the flags that were given, the environment and the file that either names.

    Raises:
        ConfigError: A value is not allowed, or a name is unknown.
    """
    path = arguments.config or environment.get(CONFIG_FILE_VARIABLE)
    file = read_config_file(Path(path)) if path else None
    names = {each.name for component in COMPONENTS.values() for each in definitions_of(component)}
    flags = {name: value for name, value in vars(arguments).items() if name in names}
    return resolve(flags, file, environment)


def _add_flag(group: Any, definition: Definition) -> None:  # noqa: ANN401 - argparse's group type is private
    shown = definition.option.none_word if definition.default is None else definition.default
    keywords: dict[str, Any] = {
        "dest": definition.name,
        "default": argparse.SUPPRESS,
        "help": f"{definition.option.help} Default: {_show(shown)}.".replace("%", "%%"),
    }
    if definition.scalar is bool:
        group.add_argument(definition.flag, action=argparse.BooleanOptionalAction, **keywords)
        return
    if definition.is_list:
        keywords["action"] = "append"
    group.add_argument(definition.flag, metavar=_metavar(definition), **keywords)


def _metavar(definition: Definition) -> str:
    if definition.choices:
        return "|".join(definition.choices)
    return _METAVARS[definition.scalar]


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value == () else str(value)
