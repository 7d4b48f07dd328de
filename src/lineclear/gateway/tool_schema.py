"""What a tool's JSON schema says about an argument, as far as it decides how the argument's text is read.

The chat format writes strings as they are and everything else as JSON. So the text `123` is the string "123" or the
number 123, and the schema decides.
"""

import json
from typing import Any, cast

import msgspec

from lineclear.gateway.conversation import JsonObject, ToolDefinition

_MAX_REFERENCES = 16
"""Nested `$ref`, `anyOf`, … that are followed; schemas may refer to themselves."""

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""What models write for JSON's words now and then."""

_NUMBER_TYPES = frozenset({"number", "integer"})
_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})


class ToolSchema:
    """The argument types of one tool."""

    def __init__(self, tool: ToolDefinition) -> None:
        self._root = tool.parameters
        properties = tool.parameters.get("properties")
        self._properties: JsonObject = properties if isinstance(properties, dict) else {}

    def is_string(self, key: str) -> bool:
        """Whether the argument can only be a string."""
        return self._types(key) == frozenset({"string"})

    def to_json(self, key: str, text: str) -> str:
        """The JSON of an argument whose text is complete.

        Text that is JSON of an allowed type stays as it was written. Other text is a string, whatever the schema says:
        the arguments are always valid JSON, and the client tells the model what it thinks of them.
        """
        types = self._types(key)
        candidate = text.strip()
        candidate = _PYTHON_WORDS.get(candidate, candidate)
        json_type = _json_type(candidate)
        if json_type is None or (json_type == "string" and "string" in types):
            return json.dumps(text, ensure_ascii=False)
        is_number = json_type in _NUMBER_TYPES and types & _NUMBER_TYPES
        if json_type in types or is_number:
            return candidate
        return json.dumps(text, ensure_ascii=False)

    def _types(self, key: str) -> frozenset[str]:
        if key not in self._properties:
            return _ALL_TYPES
        return self._schema_types(self._properties[key], _MAX_REFERENCES) or _ALL_TYPES

    def _schema_types(self, schema: object, num_left: int) -> frozenset[str]:
        """The JSON types a schema allows; none if it does not say."""
        if not isinstance(schema, dict) or num_left == 0:
            return frozenset()
        described = cast("JsonObject", schema)
        if "$ref" in described:
            return self._schema_types(self._resolve(described["$ref"]), num_left - 1)
        if "type" in described:
            declared = described["type"]
            names = cast("list[Any]", declared) if isinstance(declared, list) else [declared]
            return frozenset(name for name in names if isinstance(name, str)) & _ALL_TYPES
        if "enum" in described or "const" in described:
            values = described.get("enum", [described.get("const")])
            return frozenset(map(_type_of, cast("list[Any]", values))) if isinstance(values, list) else frozenset()
        return self._alternatives(described, num_left)

    def _alternatives(self, described: JsonObject, num_left: int) -> frozenset[str]:
        for keyword in ("anyOf", "oneOf", "allOf"):
            options = described.get(keyword)
            if isinstance(options, list):
                types = [self._schema_types(option, num_left - 1) for option in cast("list[Any]", options)]
                return frozenset().union(*types) if all(types) else frozenset()
        return frozenset()

    def _resolve(self, reference: object) -> object:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        found: object = self._root
        for name in reference[2:].split("/"):
            if not isinstance(found, dict):
                return None
            found = found.get(name.replace("~1", "/").replace("~0", "~"))
        return found


def _json_type(text: str) -> str | None:
    """The JSON type of a text, or `None` if it is not JSON."""
    try:
        return _type_of(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        return None


def _type_of(value: object) -> str:  # noqa: PLR0911 - one answer a type
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
