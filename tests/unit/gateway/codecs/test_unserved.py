"""What would change the answer and is not served is refused by name; what asks for nothing is accepted."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from lineclear.gateway.codecs.chat import ChatBody
from lineclear.gateway.codecs.chat_messages import MessageBody, read_messages
from lineclear.gateway.codecs.completions import CompletionBody
from lineclear.gateway.codecs.unserved import (
    CHAT,
    COMPLETIONS,
    TOKENIZE_CHAT,
    TOKENIZE_TEXT,
    Unserved,
    UnservedFields,
)
from lineclear.gateway.conversation import PastToolCall
from lineclear.gateway.errors import InvalidRequestError

TABLES = {"chat": CHAT, "completions": COMPLETIONS, "tokenize": TOKENIZE_TEXT, "tokenize_chat": TOKENIZE_CHAT}


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> Mapping[str, Unserved]:
    return TABLES[request.param]


def test_each_field_is_refused_by_name(table: Mapping[str, Unserved]) -> None:
    fields = UnservedFields(table)
    for name in table:
        with pytest.raises(InvalidRequestError) as raised:
            fields.refuse_in(json.dumps({"model": "x", name: {"asks": "for something"}}).encode())
        assert (raised.value.param, raised.value.code) == (name, "unserved_field")
        assert raised.value.message.startswith(f"{name}: got ")


def test_values_that_ask_for_nothing_are_accepted(table: Mapping[str, Unserved]) -> None:
    fields = UnservedFields(table)
    fields.refuse_in(b"{}")
    for name, row in table.items():
        assert None in row.neutral
        for value in row.neutral:
            fields.refuse_in(json.dumps({name: value}).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_logprobs", 0),
        ("truncate_prompt_tokens", -1),
        ("web_search_options", {}),
        ("enable_thinking", False),
        ("include_reasoning", False),
        ("do_sample", False),
        ("no_repeat_ngram_size", True),
        ("length_penalty", 0),
        ("response_format", {"type": "json_object"}),
        ("function_call", {"name": "f"}),
    ],
)
def test_a_value_that_looks_like_nothing_may_ask_for_something(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError):
        UnservedFields(CHAT).refuse_in(json.dumps({name: value}).encode())


@pytest.mark.parametrize(("kind", "table"), [(ChatBody, CHAT), (CompletionBody, COMPLETIONS)])
def test_no_field_is_served_and_unserved(kind: type[msgspec.Struct], table: Mapping[str, Unserved]) -> None:
    both = set(kind.__struct_fields__) & set(table)
    assert not both


@pytest.mark.parametrize(
    "name", ["user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prediction"]
)
def test_bookkeeping_is_ignored(name: str) -> None:
    for each in TABLES.values():
        UnservedFields(each).refuse_in(json.dumps({name: {"a": 1}}).encode())


@pytest.mark.parametrize("field", ["audio", "prefix", "partial"])
def test_fields_of_messages_that_are_not_served(field: str) -> None:
    [message] = msgspec.convert([{"role": "assistant", "content": "a", field: True}], list[MessageBody])
    with pytest.raises(InvalidRequestError) as raised:
        read_messages([message])
    assert raised.value.param == f"messages[0].{field}"


def test_the_older_form_of_a_tool_call_is_understood() -> None:
    call = {"name": "f", "arguments": '{"a": 1}'}
    [message] = read_messages(msgspec.convert([{"role": "assistant", "function_call": call}], list[MessageBody]))
    assert message.tool_calls == (PastToolCall("", "f", {"a": 1}),)
