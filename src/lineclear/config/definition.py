"""Option definitions read from the components' dataclasses, and the checks derived from them.

A `Definition` is built once per field from its annotation and default. Text (flags, variables) is parsed and typed
values (TOML, direct construction) are checked by the same definition, so all sources allow the same values.
"""

import dataclasses
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args, get_origin, get_type_hints

from lineclear.base.errors import ConfigError
from lineclear.config.option import Option

Scalar: TypeAlias = bool | int | float | str
Value: TypeAlias = Scalar | tuple[str, ...] | None

VARIABLE_PREFIX = "LINECLEAR_"

_TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "0"})
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Definition:
    """One option: its name, the type of its values, its default and its `Option`.

    `scalar` is the type of one value; `choices` are the allowed words of a `Literal`; an option that `is_list` holds a
    tuple of scalars.
    """

    name: str
    scalar: type[bool] | type[int] | type[float] | type[str]
    choices: tuple[str, ...]
    is_list: bool
    default: Value
    option: Option

    @property
    def flag(self) -> str:
        """The command line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return VARIABLE_PREFIX + self.name.upper()

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        none_word = f", or {self.option.none_word}" if self.option.none_word else ""
        return self._allowed_scalar + none_word

    @property
    def _allowed_scalar(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.scalar is str:
            return str(self.option.allowed or _TYPE_NAMES[str])
        limits = f", {self.option.allowed}" if self.option.allowed else ""
        return _TYPE_NAMES[self.scalar] + limits

    def parse(self, text: str) -> Value:
        """Return the value that a flag or a variable spells.

        Raises:
            ConfigError: The text is not an allowed value.
        """
        if self.is_list:
            return self.check([item.strip() for item in text.split(",") if item.strip()])
        if self.option.none_word is not None and text == self.option.none_word:
            return None
        return self._check_scalar(self._parse_scalar(text))

    def check(self, value: object) -> Value:
        """Return a typed value as the option holds it: numbers widened to float, lists frozen.

        Raises:
            ConfigError: The value has another type or is not allowed.
        """
        if self.is_list:
            if not isinstance(value, list | tuple):
                raise self.error(value)
            return tuple(str(self._check_scalar(item)) for item in value)
        if self.option.none_word is not None and (value is None or value == self.option.none_word):
            return None
        return self._check_scalar(value)

    def error(self, value: object) -> ConfigError:
        """The error for a value that is not allowed; a secret is not repeated."""
        return ConfigError(self.name, "(hidden)" if self.option.secret else value, self.allowed)

    def _parse_scalar(self, text: str) -> Scalar:
        if self.scalar is bool:
            return self._parse_bool(text)
        try:
            return self.scalar(text)
        except ValueError:
            raise self.error(text) from None

    def _parse_bool(self, text: str) -> bool:
        word = text.lower()
        if word not in _TRUE_WORDS | _FALSE_WORDS:
            raise self.error(text)
        return word in _TRUE_WORDS

    def _check_scalar(self, value: object) -> Scalar:
        if self.scalar is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not self.scalar:
            raise self.error(value)
        if self.choices and value not in self.choices:
            raise self.error(value)
        if self.option.allowed is not None and not self.option.allowed.contains(value):  # pyright: ignore[reportArgumentType]
            raise self.error(value)
        return value


def check_component(component: object) -> None:
    """Check every field of a component that is being built, and bring each value to its option's type.

    Mutates: the component, from its `__post_init__`, before anybody else has seen it.

    Raises:
        ConfigError: A field's value is not allowed.
    """
    for definition in definitions_of(type(component)):
        value = definition.check(getattr(component, definition.name))
        object.__setattr__(component, definition.name, value)


@cache
def definitions_of(component: type[Any]) -> tuple[Definition, ...]:
    """The definitions of a component's fields, in their order."""
    hints = get_type_hints(component, include_extras=True)
    return tuple(_define(field, hints[field.name]) for field in dataclasses.fields(component))


def _define(field: dataclasses.Field[Any], hint: object) -> Definition:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{field.name}: a component's field needs an Option")
    annotation, option = get_args(hint)
    scalar, choices, is_list = _read_annotation(annotation)
    return Definition(field.name, scalar, choices, is_list, cast("Value", field.default), option)


def _read_annotation(annotation: object) -> tuple[type[Any], tuple[str, ...], bool]:
    if get_origin(annotation) is UnionType:
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0], (), True
    if get_origin(annotation) is Literal:
        return str, get_args(annotation), False
    if not isinstance(annotation, type) or annotation not in _TYPE_NAMES:
        raise TypeError(f"{annotation}: options are bool, int, float, str, Literal or tuple[str, ...]")
    return annotation, (), False
