"""Prints a resolved configuration as TOML that `--config` reads back, with each value's origin as a comment."""

import json
from itertools import chain

from lineclear.config.definition import Definition, Value, definitions_of
from lineclear.config.resolve import COMPONENTS, Resolved

HIDDEN = "(hidden)"


def render(resolved: Resolved) -> str:
    """The whole configuration, a comment line above each component's options; secrets are hidden."""
    blocks = [_render_component(field, resolved) for field in COMPONENTS]
    return "\n\n".join(blocks) + "\n"


def _render_component(field: str, resolved: Resolved) -> str:
    component = getattr(resolved.config, field)
    definitions = definitions_of(type(component))
    assignments = [_assignment(each, getattr(component, each.name)) for each in definitions]
    width = max(map(len, assignments))
    lines = (
        f"{assignment:{width}}  # {resolved.origins[definition.name]}"
        for definition, assignment in zip(definitions, assignments, strict=True)
    )
    return "\n".join(chain((f"# {field}",), lines))


def _assignment(definition: Definition, value: Value) -> str:
    if definition.option.secret and value:
        return f"# {definition.name} = {HIDDEN}"
    return f"{definition.name} = {_toml(definition, value)}"


def _toml(definition: Definition, value: Value) -> str:
    """A TOML literal; JSON's strings, numbers, booleans and lists are valid TOML."""
    return json.dumps(definition.option.none_word if value is None else value, ensure_ascii=False)
