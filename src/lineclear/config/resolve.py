"""Turns flags, environment variables and a TOML file into one `ServeConfig`: the only reader of the three.

Precedence, strongest first: flag, variable, file, default. All sources name an option the same way: the flag
`--max-total-tokens` is the variable `LINECLEAR_MAX_TOTAL_TOKENS` and the TOML key `max_total_tokens`. A list in a flag
is given by repeating the flag, in a variable by commas.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from lineclear.base.errors import ConfigError
from lineclear.config.components import (
    CacheConfig,
    EngineConfig,
    GatewayConfig,
    GuardConfig,
    HandoffConfig,
    LinkConfig,
    ModelSource,
    RanksConfig,
    RoutingConfig,
    ServeConfig,
    SupervisorConfig,
)
from lineclear.config.definition import VARIABLE_PREFIX, Definition, Value, definitions_of
from lineclear.config.suggestion import did_you_mean

COMPONENTS: Mapping[str, type[Any]] = {
    "source": ModelSource,
    "engine": EngineConfig,
    "cache": CacheConfig,
    "gateway": GatewayConfig,
    "handoff": HandoffConfig,
    "ranks": RanksConfig,
    "routing": RoutingConfig,
    "guard": GuardConfig,
    "link": LinkConfig,
    "supervisor": SupervisorConfig,
}
"""The parts of a `ServeConfig`, by field."""

CONFIG_FILE_VARIABLE = VARIABLE_PREFIX + "CONFIG"
RESERVED_VARIABLES = frozenset({CONFIG_FILE_VARIABLE, VARIABLE_PREFIX + "DATA"})
"""Variables that are no options: the configuration file's path, and the folder where tests find their data."""


FlagValue: TypeAlias = str | list[str] | bool
"""Text, a list's texts, or the sense of a flag that takes no value."""


class Source(Enum):
    """The kinds of places a value can come from."""

    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    FLAG = "flag"


@dataclass(frozen=True)
class Origin:
    """Where one value came from; `place` is the flag, the variable's name or the file's path."""

    source: Source
    place: str = ""

    def __str__(self) -> str:
        return f"{self.source.value} {self.place}".rstrip()


@dataclass(frozen=True)
class ConfigFile:
    """A TOML file that was read."""

    path: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class Resolved:
    """The configuration and, for each option's name, where its value came from."""

    config: ServeConfig
    origins: Mapping[str, Origin]


@cache
def definitions_by_name() -> Mapping[str, Definition]:
    """Every option of every component."""
    return {each.name: each for component in COMPONENTS.values() for each in definitions_of(component)}


def read_config_file(path: Path) -> ConfigFile:
    """Read a TOML file.

    Raises:
        ConfigError: The file cannot be read or is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config", str(path), f"a readable file in UTF-8: {error}") from None
    try:
        return ConfigFile(str(path), tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("config", str(path), f"a file in TOML: {error}") from None


def resolve(flags: Mapping[str, FlagValue], file: ConfigFile | None, environment: Mapping[str, str]) -> Resolved:
    """Resolve every option from its strongest source.

    Raises:
        ConfigError: A value is not allowed, or a key or variable is unknown; it says where it came from.
    """
    values: dict[str, Value] = {}
    origins = dict.fromkeys(definitions_by_name(), Origin(Source.DEFAULT))
    for given in (_from_file(file), _from_environment(environment), _from_flags(flags)):
        for name, (raw, origin) in given.items():
            values[name] = _read(_definition(name, origin), raw, origin)
            origins[name] = origin
    return Resolved(_build(values, origins), origins)


_Given = dict[str, tuple[object, Origin]]


def _from_file(file: ConfigFile | None) -> _Given:
    if file is None:
        return {}
    return {name: (value, Origin(Source.FILE, file.path)) for name, value in file.values.items()}


def _from_environment(environment: Mapping[str, str]) -> _Given:
    names = sorted(name for name in environment if name.startswith(VARIABLE_PREFIX) and name not in RESERVED_VARIABLES)
    return {
        name.removeprefix(VARIABLE_PREFIX).lower(): (environment[name], Origin(Source.VARIABLE, name)) for name in names
    }


def _from_flags(flags: Mapping[str, FlagValue]) -> _Given:
    return {name: (value, Origin(Source.FLAG, "--" + name.replace("_", "-"))) for name, value in flags.items()}


def _definition(name: str, origin: Origin) -> Definition:
    definition = definitions_by_name().get(name)
    if definition is None:
        raise _unknown(name, origin)
    return definition


def _unknown(name: str, origin: Origin) -> ConfigError:
    """The error for a name that no option has; what was probably meant is spelled as its source spells it."""
    match origin.source:
        case Source.VARIABLE:
            known = {each.variable for each in definitions_by_name().values()} | RESERVED_VARIABLES
            suggestion = did_you_mean(origin.place, sorted(known), prefix=VARIABLE_PREFIX)
            return ConfigError("variable", origin.place, f"the variable of an option{suggestion}")
        case Source.FILE if name in COMPONENTS:
            allowed = f"options outside of tables; it came from {origin}"
            return ConfigError("table", name, allowed)
        case _:
            suggestion = did_you_mean(name, definitions_by_name())
            return ConfigError("option", name, f"the name of an option{suggestion}; it came from {origin}")


def _read(definition: Definition, raw: object, origin: Origin) -> Value:
    try:
        return (
            definition.parse(raw)
            if isinstance(raw, str) and origin.source is not Source.FILE
            else definition.check(raw)
        )
    except ConfigError as error:
        raise _with_origin(error, origin) from None


def _build(values: Mapping[str, Value], origins: Mapping[str, Origin]) -> ServeConfig:
    try:
        parts = {field: component(**_given_to(component, values)) for field, component in COMPONENTS.items()}
    except ConfigError as error:
        raise _with_origin(error, origins[error.field]) from None
    return ServeConfig(**parts)


def _given_to(component: type[Any], values: Mapping[str, Value]) -> dict[str, Value]:
    names: Iterable[str] = (each.name for each in fields(component))
    return {name: values[name] for name in names if name in values}


def _with_origin(error: ConfigError, origin: Origin) -> ConfigError:
    return ConfigError(error.field, error.value, f"{error.allowed}; it came from {origin}")
