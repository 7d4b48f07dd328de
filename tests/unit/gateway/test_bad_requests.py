"""Requests that broke other servers, through each API; the reports are in the names of bugs, the inputs are ours."""

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lineclear.gateway.tokenization import Tokenization
from tests.unit.gateway.conftest import RunningGateway
from tests.unit.gateway.openai_events import parse_chat
from tests.unit.gateway.scripted_worker import model_facts
from tests.unit.gateway.surfaces import CHAT, MESSAGES, RESPONSES, SURFACES, Surface
from tests.unit.gateway.test_serving import says

StartGateway = Callable[..., RunningGateway]
every_surface = pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)

MCP_SCHEMA = {
    "type": "object",
    "$defs": {"Path": {"type": "string"}, "Node": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
    "properties": {
        "path": {"$ref": "#/$defs/Path"},
        "node": {"$ref": "#/$defs/Node"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "headers": {"type": "object", "propertyNames": {"pattern": "^x-"}, "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
}


@pytest.fixture
def gateway(start_gateway: StartGateway, tokenization: Tokenization) -> RunningGateway:
    gateway = start_gateway(max_body_bytes=1024 * 1024)
    gateway.start_worker(script=says(tokenization, "fine"), facts=model_facts(max_model_len=2048))
    return gateway


def error_of(answer: Any, surface: Surface) -> str:
    """The message of a refusal, in an envelope of the called API."""
    body = answer.json()
    if surface is MESSAGES:
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"})
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return surface.read_error(body)


@every_surface
@pytest.mark.parametrize("stream", [False, True])
def test_output_is_cut_to_what_fits_and_a_prompt_that_leaves_no_room_is_told_in_words_that_agents_know(
    gateway: RunningGateway, surface: Surface, stream: bool
) -> None:
    """claude-code #476, pi #5793: no compaction; never 200 and then a failure."""
    limit = {CHAT: "max_tokens", MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}[surface]
    fields = {"stream": stream, limit: 32_000}
    text = "the " * 900
    answer = gateway.client.post(surface.path, json=surface.body(text, [], False) | fields)
    assert answer.status_code == 200, answer.text
    submitted = gateway.workers[0].next_submitted()
    assert submitted.sampling.max_tokens == 2048 - len(submitted.prompt_token_ids) >= 1
    answer = gateway.client.post(surface.path, json=surface.body(text * 2, [], False) | fields)
    assert answer.status_code == 400
    assert error_of(answer, surface).startswith("prompt is too long: ")
    assert " tokens > 2047 maximum" in error_of(answer, surface)


@every_surface
@pytest.mark.parametrize("where", ["text", "tool"])
def test_half_a_character_is_refused_and_a_null_character_is_text(
    gateway: RunningGateway, surface: Surface, where: str
) -> None:
    """Rapid-MLX PR #730, aider #3693: 500, or 200 with an error of Python's in it."""
    for escaped, status in (("\\ud800", 400), ("\\udc00x", 400), ("\\u0000", 200), ("\\ud83e\\udd9c", 200)):
        name = "f_here" if where == "tool" else "f"
        body = json.dumps(surface.body("a_here" if where == "text" else "a", [{"name": name, "parameters": {}}], False))
        answer = gateway.client.post(surface.path, content=body.replace("_here", escaped).encode())
        assert answer.status_code == status, answer.text
        if status == 400:
            assert "surrogate pair" in error_of(answer, surface)


@every_surface
def test_schemas_of_all_kinds_are_taken(
    start_gateway: StartGateway, tokenization: Tokenization, surface: Surface
) -> None:
    """Schemas of MCP servers: references that never end, unions with null, 20 kB."""
    gateway = start_gateway()
    facts = model_facts(max_model_len=100_000, num_blocks=8192)
    gateway.start_worker(script=says(tokenization, "fine"), facts=facts)
    functions = [{"name": f"tool_{idx}", "parameters": MCP_SCHEMA} for idx in range(25)]
    functions.append({"name": "large", "parameters": {"description": "x" * 20_000}})
    answer = gateway.client.post(surface.path, json=surface.body("a", functions, False))
    assert answer.status_code == 200, answer.text


@every_surface
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": "0.7"}, 'temperature: got "0.7", allowed: '),
        ({"stream": "yes"}, 'stream: got "yes", allowed: '),
        ({"tools": {}}, "tools: got object, allowed: "),
        ({"tools": [5]}, "tools[0]: got 5, allowed: object"),
        ({"seed": 2**70}, "seed: "),
        ({"top_p": 0}, "top_p: got 0"),
    ],
)
def test_values_of_the_wrong_kind_are_named(
    gateway: RunningGateway, surface: Surface, fields: dict[str, Any], message: str
) -> None:
    answer = gateway.client.post(surface.path, json=surface.body("a", [], False) | fields)
    assert (answer.status_code, error_of(answer, surface)[: len(message)]) == (400, message)


@every_surface
def test_what_no_server_knows_is_ignored(gateway: RunningGateway, surface: Surface) -> None:
    body = surface.body("a", [], False) | {"nobody_knows_this": {"a": [1]}, "metadata": {"user_id": "{}"}}
    assert gateway.client.post(f"{surface.path}?beta=true", json=body).status_code == 200


@every_surface
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'"x"', b"\xff", b"{}"])
def test_what_is_no_request_is_refused(gateway: RunningGateway, surface: Surface, body: bytes) -> None:
    answer = gateway.client.post(surface.path, content=body)
    assert answer.status_code == 400
    assert error_of(answer, surface)


@every_surface
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "deflate"])
def test_compressed_bodies_are_refused(gateway: RunningGateway, surface: Surface, encoding: str) -> None:
    body = gzip.compress(json.dumps(surface.body("a", [], False)).encode())
    answer = gateway.client.post(surface.path, content=body, headers={"content-encoding": encoding})
    assert (answer.status_code, error_of(answer, surface)[:17]) == (415, "content-encoding:")


@every_surface
def test_a_body_in_chunks_is_read_up_to_the_limit(gateway: RunningGateway, surface: Surface) -> None:
    def chunks(num_spaces: int) -> Iterator[bytes]:
        body = json.dumps(surface.body("a", [], False)).encode()
        yield body
        yield b" " * num_spaces

    assert gateway.client.post(surface.path, content=chunks(900_000)).status_code == 200
    answer = gateway.client.post(surface.path, content=chunks(1_100_000))
    assert answer.status_code == 413
    assert error_of(answer, surface).startswith("body: got more than 1048576 bytes")


@every_surface
def test_preflights_and_other_methods(gateway: RunningGateway, surface: Surface) -> None:
    assert gateway.client.options(surface.path).status_code == 204
    for method in ("GET", "PUT", "DELETE"):
        answer = gateway.client.request(method, surface.path)
        assert answer.status_code == 405
        assert error_of(answer, surface)
    assert gateway.client.head("/").status_code == gateway.client.head("/health").status_code == 200


def test_choices_with_tools_count_their_calls_apart(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    call = "<tool_call>f</tool_call>"
    gateway.start_worker(script=says(tokenization, call + call))
    body = CHAT.body("a", [{"name": "f", "parameters": {}}], False) | {"n": 2, "stream": True}
    chunks = parse_chat(gateway.client.post(CHAT.path, json=body).text)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        calls = [call for choice in own for call in choice["delta"].get("tool_calls", ()) if "id" in call]
        assert [call["index"] for call in calls] == [0, 1]
        assert own[-1]["finish_reason"] == "tool_calls"
    ids = [call["id"] for choice in choices for call in choice["delta"].get("tool_calls", ()) if "id" in call]
    assert len(set(ids)) == 4


@pytest.mark.parametrize(("stop", "status"), [([], 200), (["x"], 200), ([""], 400), (["x" * 2000], 400)])
def test_stop_strings(gateway: RunningGateway, stop: list[str], status: int) -> None:
    for surface, field in ((CHAT, "stop"), (MESSAGES, "stop_sequences")):
        answer = gateway.client.post(surface.path, json=surface.body("a", [], False) | {field: stop})
        assert answer.status_code == status, answer.text
