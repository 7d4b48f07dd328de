"""How an argument's text is read by its declared type."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.gateway.conversation import ToolDefinition
from lineclear.gateway.tool_schema import ToolSchema

SCHEMA = {
    "$defs": {"Unit": {"enum": ["c", "f"]}, "Loop": {"$ref": "#/$defs/Loop"}},
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "object": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "unit": {"$ref": "#/$defs/Unit"},
        "loop": {"$ref": "#/$defs/Loop"},
        "gone": {"$ref": "#/$defs/Gone"},
        "free": {},
        "odd": True,
    },
}
TOOL = ToolSchema(ToolDefinition("f", SCHEMA, {}))


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("text", "123", "123"),
        ("text", " a ", " a "),
        ("count", "123", 123),
        ("count", " 123\n", 123),
        ("count", "many", "many"),
        ("count", "3.5", 3.5),
        ("ratio", "3", 3),
        ("ratio", "NaN", "NaN"),
        ("flag", "true", True),
        ("flag", "True", True),
        ("flag", "yes", "yes"),
        ("list", '["a", 1]', ["a", 1]),
        ("list", "[1,", "[1,"),
        ("object", '{"a": {"b": null}}', {"a": {"b": None}}),
        ("object", '"quoted"', '"quoted"'),
        ("maybe", "null", None),
        ("maybe", "None", None),
        ("maybe", "nothing", "nothing"),
        ("either", "7", 7),
        ("either", "seven", "seven"),
        ("unit", "c", "c"),
        ("unit", "1", "1"),
        ("loop", "1", 1),
        ("gone", "word", "word"),
        ("free", '{"a": 1}', {"a": 1}),
        ("free", "plain", "plain"),
        ("free", '"quoted"', '"quoted"'),
        ("odd", "1", 1),
        ("undeclared", "2", 2),
    ],
)
def test_the_declared_type_decides(key: str, text: str, expected: object) -> None:
    assert json.loads(TOOL.to_json(key, text)) == expected


def test_numbers_stay_as_they_were_written() -> None:
    assert TOOL.to_json("ratio", "1.10") == "1.10"
    assert TOOL.to_json("count", "123456789012345678901234567890") == "123456789012345678901234567890"


def test_only_pure_strings_can_be_streamed() -> None:
    assert [key for key in SCHEMA["properties"] if TOOL.is_string(key)] == ["text", "unit"]


@given(key=st.sampled_from([*SCHEMA["properties"], "undeclared"]), text=st.text())
def test_every_argument_is_valid_json(key: str, text: str) -> None:
    json.loads(TOOL.to_json(key, text))


@pytest.mark.parametrize("parameters", [{}, {"properties": []}, {"properties": {"a": {"type": 7}}}, {"type": "object"}])
def test_schemas_that_make_no_sense_are_no_schemas(parameters: dict[str, object]) -> None:
    assert json.loads(ToolSchema(ToolDefinition("f", parameters, {})).to_json("a", "1")) == 1


def test_deep_json_is_a_string() -> None:
    assert json.loads(TOOL.to_json("list", "[" * 100_000)) == "[" * 100_000
