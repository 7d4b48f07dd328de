"""`docs/http-api.md` against the code: the bodies' fields, and what a gateway does with each example in the tables."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from lineclear.gateway.codecs.chat import ChatBody
from lineclear.gateway.codecs.completions import CompletionBody
from lineclear.gateway.codecs.messages_body import MessagesBody
from lineclear.gateway.codecs.responses_body import ResponsesBody
from lineclear.gateway.codecs.unserved import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from lineclear.protocol import wire
from tests.unit.gateway.conftest import RunningGateway

PAGE = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
ROW = re.compile(r"\| `(?P<field>\w+)` \| `(?P<example>[^`]+)` \|", re.MULTILINE)
REFUSED_ROW = re.compile(r"\| (?P<api>\w+) \| `(?P<field>\w+)` \| `(?P<example>[^`]+)` \|", re.MULTILINE)

UNSERVED_ROW = re.compile(r"^\| (?P<apis>[\w, ]+) \| (?P<fields>`[\w`, ]+`) \| (?P<allowed>.+) \|$", re.MULTILINE)
IGNORED_ROW = re.compile(r"^\| (?P<apis>[\w, ]+) \| `(?P<field>\w+)` \| `(?P<example>[^`]+)` \|", re.MULTILINE)

KINDS = {"chat": ChatBody, "completions": CompletionBody, "messages": MessagesBody, "responses": ResponsesBody}
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
UNSERVED = {"chat": CHAT, "completions": COMPLETIONS, "messages": MESSAGES, "responses": RESPONSES}
LEAST = {
    "chat": {"messages": [{"role": "user", "content": "hello"}]},
    "completions": {"prompt": "hello"},
    "messages": {"messages": [{"role": "user", "content": "hello"}]},
    "responses": {"input": "hello"},
}
SHARED = {"chat": ["chat and completions"], "completions": ["chat and completions"], "messages": [], "responses": []}
"""Tables of fields that an API has with some others."""
COMPANY = {
    "stream_options": {"stream": False},
}
"""What an example needs beside it to make sense."""


class Example(NamedTuple):
    """One row of a table."""

    api: str
    field: str
    value: Any


def section(heading: str) -> str:
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def served(api: str) -> list[Example]:
    text = "".join(section(f"Fields served by {name}") for name in ("all", *SHARED[api], api))
    return [Example(api, row["field"], json.loads(row["example"])) for row in ROW.finditer(text)]


def refused() -> list[Example]:
    rows = REFUSED_ROW.finditer(section("Values refused"))
    return [Example(row["api"], row["field"], json.loads(row["example"])) for row in rows]


def ignored(api: str) -> list[Example]:
    rows = [row for row in IGNORED_ROW.finditer(section("Ignored")) if api in apis_of(row)]
    return [Example(api, row["field"], json.loads(row["example"])) for row in rows]


def apis_of(row: re.Match[str]) -> list[str]:
    return list(KINDS) if row["apis"] == "all" else re.split(", | and ", row["apis"])


@pytest.mark.parametrize("api", KINDS)
def test_the_fields_of_a_body_are_those_that_the_page_calls_served(api: str) -> None:
    names = [example.field for example in served(api)]
    assert sorted(names) == sorted(KINDS[api].__struct_fields__)
    ignored_names = {example.field for example in ignored(api)}
    assert not ignored_names & (set(names) | set(UNSERVED[api]))


@pytest.mark.parametrize("api", KINDS)
def test_the_fields_that_are_not_served_are_in_the_page_with_what_is_allowed(api: str) -> None:
    rows = [row for row in UNSERVED_ROW.finditer(section("Fields not served")) if api in apis_of(row)]
    shown = [(name, row["allowed"]) for row in rows for name in re.findall(r"`(\w+)`", row["fields"])]
    assert sorted(shown) == sorted((name, unserved.allowed) for name, unserved in UNSERVED[api].items())


@pytest.fixture
def gateway(start_gateway: Callable[..., RunningGateway]) -> RunningGateway:
    gateway = start_gateway(served_model_name="lineclear-tiny")
    gateway.start_worker(
        script=lambda submitted: [wire.SequenceOutput(sequence_id=submitted.sequence_id, finish_reason="stop")]
    )
    return gateway


@pytest.mark.parametrize("api", KINDS)
def test_what_is_served_or_ignored_is_answered(api: str, gateway: RunningGateway) -> None:
    examples = served(api) + ignored(api)
    assert examples
    refusals = [(example, answer.text) for example in examples if (answer := post(gateway, example)).is_error]
    assert refusals == []


def test_what_is_refused_is_refused_by_name(gateway: RunningGateway) -> None:
    examples = refused()
    assert examples
    for example in examples:
        answer = post(gateway, example)
        assert answer.status_code == 400, example
        assert re.match(r"\w+", answer.json()["error"]["message"])[0] == example.field, example


def post(gateway: RunningGateway, example: Example) -> httpx.Response:
    body = LEAST[example.api] | COMPANY.get(example.field, {}) | {example.field: example.value}
    return gateway.client.post(PATHS[example.api], json=body)
