"""Anthropic's Messages API over real sockets, against workers that say what the test tells them."""

import concurrent.futures
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import openai
import pytest
from anthropic.types import Message, ModelInfo

from lineclear.gateway.ledger import Outcome
from lineclear.gateway.tokenization import Tokenization
from lineclear.protocol import wire
from tests.unit.gateway.anthropic_events import message_of, parse_events
from tests.unit.gateway.conftest import RunningGateway
from tests.unit.gateway.scripted_worker import model_facts
from tests.unit.gateway.test_serving import num_ended, render_metrics, says, token

StartGateway = Callable[..., RunningGateway]
PATH = "/v1/messages"
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
TOOLS = [
    {"name": "get_weather", "input_schema": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
]
CALL = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
ALL_KINDS = f"a</think>b{CALL}\n<tool_call>get_weather</tool_call>c"
"""Thinking, text, two calls with whitespace between, text: one block each."""


def ask(gateway: RunningGateway, **fields: Any) -> httpx.Response:
    return gateway.client.post(PATH, json=BODY | fields)


def both_ways(gateway: RunningGateway, **fields: Any) -> dict[str, Any]:
    """The message, asked for in one piece and as a stream, which must say the same."""
    whole = ask(gateway, **fields)
    assert whole.status_code == 200, whole.text
    Message.model_validate(whole.json())
    streamed = message_of(ask(gateway, stream=True, **fields).text)
    volatile = {"id"}
    for message in (whole.json(), streamed):
        for block in message["content"]:
            block.pop("id", None)
    expected = {name: value for name, value in whole.json().items() if name not in volatile | {"content"}}
    assert {name: streamed[name] for name in expected} == expected
    return streamed


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def says_cached(tokenization: Tokenization, text: str, num_cached_tokens: int) -> Callable[..., Any]:
    """A script like those of workers: the first output tells what was cached."""

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        first, *others = says(tokenization, text, stop_token_id=0)(submitted)
        return [msgspec.structs.replace(first, num_cached_tokens=num_cached_tokens), *others]

    return script


@contextmanager
def open_stream(gateway: RunningGateway, **fields: Any) -> Iterator[Iterator[str]]:
    with gateway.client.stream("POST", PATH, json=BODY | {"stream": True} | fields) as response:
        assert response.status_code == 200, response.read()
        yield response.iter_lines()


def next_event(lines: Iterator[str], kind: str) -> dict[str, Any]:
    """The next event of a kind; it must come before the stream ends."""
    for line in lines:
        if line.startswith("data: ") and json.loads(line.removeprefix("data: "))["type"] == kind:
            return json.loads(line.removeprefix("data: "))
    raise AssertionError(f"no {kind}")


def test_a_message(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says_cached(tokenization, "bonjour \U0001f99c", 3))
    message = both_ways(gateway)
    assert message["content"] == [{"type": "text", "text": "bonjour \U0001f99c"}]
    assert (message["role"], message["stop_reason"], message["stop_sequence"]) == ("assistant", "end_turn", None)
    submitted = worker.next_submitted()
    usage = message["usage"]
    assert usage["cache_read_input_tokens"] == 3
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(submitted.prompt_token_ids)
    assert usage["output_tokens"] == len(tokenization.encode_text("bonjour \U0001f99c")) + 1
    assert submitted.sampling.max_tokens == 64
    assert num_ended(gateway, Outcome.COMPLETED) == 2


def test_cached_tokens_are_in_the_first_event(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with open_stream(gateway) as lines:
        submitted = worker.next_submitted()
        worker.send(token(tokenization, submitted.sequence_id, "x", num_cached_tokens=2))
        usage = next_event(lines, "message_start")["message"]["usage"]
        assert usage["cache_read_input_tokens"] == 2
        assert usage["input_tokens"] == len(submitted.prompt_token_ids) - 2
        worker.send(wire.SequenceOutput(sequence_id=submitted.sequence_id, finish_reason="stop"))
        next_event(lines, "message_stop")


def test_each_kind_has_blocks_of_its_own(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, ALL_KINDS))
    message = both_ways(gateway, thinking={"type": "adaptive"}, tools=TOOLS)
    assert kinds(message) == ["thinking", "text", "tool_use", "tool_use", "text"]
    thinking, before, first, second, after = message["content"]
    assert (thinking["thinking"], bool(thinking["signature"])) == ("a", True)
    assert (before["text"], after["text"]) == ("b", "c")
    assert (first["name"], first["input"]) == ("get_weather", {"city": "Paris"})
    assert (second["name"], second["input"]) == ("get_weather", {})
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    ids = [block["id"] for block in ask(gateway, tools=TOOLS).json()["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("text", "ending", "fields", "reason"),
    [
        ("one", {"finish_reason": "length"}, {}, "max_tokens"),
        ("one", {"finish_reason": "length"}, {"max_tokens": 100_000}, "model_context_window_exceeded"),
        ("one", {"finish_reason": "length"}, {"max_tokens": None}, "model_context_window_exceeded"),
        ("one", {}, {}, "end_turn"),
        ("", {"stop_token_id": 0}, {}, "end_turn"),
        (CALL, {}, {"tools": TOOLS}, "tool_use"),
        (CALL, {}, {}, "end_turn"),
    ],
)
def test_why_a_message_ends(
    start_gateway: StartGateway, tokenization: Tokenization, text: str, ending: Any, fields: Any, reason: str
) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, text, **ending))
    message = both_ways(gateway, **fields)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, None)


def test_stop_sequences_end_a_message_and_are_named(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "ok\nUser: x"))
    message = both_ways(gateway, stop_sequences=["\nUser:", "never"])
    assert message["content"] == [{"type": "text", "text": "ok"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "\nUser:")


def test_one_call_at_a_time(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, CALL + CALL))
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = both_ways(gateway, tools=TOOLS, tool_choice=choice)
    assert (kinds(message), message["stop_reason"]) == (["tool_use"], "tool_use")


@pytest.mark.parametrize("num_tokens", [2, 4, 6])
def test_a_call_that_is_cut_off_is_nothing_to_run(
    start_gateway: StartGateway, tokenization: Tokenization, num_tokens: int
) -> None:
    gateway = start_gateway()
    token_ids = tokenization.encode_prompt(f"a{CALL}", add_special_tokens=False)[:num_tokens]

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        return [
            wire.SequenceOutput(sequence_id=submitted.sequence_id, token_ids=token_ids, finish_reason="length"),
        ]

    gateway.start_worker(script=script)
    whole = ask(gateway, tools=TOOLS).json()
    streamed = message_of(ask(gateway, tools=TOOLS, stream=True).text)
    assert whole["stop_reason"] == streamed["stop_reason"] == "max_tokens"
    runnable = [block for block in streamed["content"] if block.get("input", block) is not None]
    assert [block["type"] for block in runnable] == kinds(whole)
    assert "tool_use" not in kinds(whole)


def test_a_begun_answer_is_gone_on_with(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, "B)"))
    begun = [*BODY["messages"], {"role": "assistant", "content": "The answer is <|user|>("}]
    assert both_ways(gateway, messages=begun)["content"] == [{"type": "text", "text": "B)"}]
    prompt = worker.next_submitted().prompt_token_ids
    beginning = tokenization.encode_text("The answer is <|user|>(")
    assert prompt[-len(beginning) :] == beginning
    ask(gateway)
    worker.next_submitted()
    assert prompt[: -len(beginning)] == worker.next_submitted().prompt_token_ids


def test_a_line_for_anthropics_accounts_does_not_change_the_prompt(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, "x"))
    for line in ("cch=aaa;", "cch=bbb;"):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: {line}"}, {"type": "text", "text": "be brief"}]
        ask(gateway, system=system, tools=TOOLS).raise_for_status()
    assert worker.next_submitted().prompt_token_ids == worker.next_submitted().prompt_token_ids


def test_tokens_are_counted_as_they_are_sent(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway(max_waiting=0)
    worker = gateway.start_worker(facts=model_facts(max_running=1))
    fields: dict[str, Any] = {"system": "be brief", "tools": TOOLS}
    with open_stream(gateway, **fields):  # the server is full, and counts all the same
        submitted = worker.next_submitted()
        assert ask(gateway).status_code == 429
        counted = gateway.client.post(f"{PATH}/count_tokens", json={**BODY, **fields, "max_tokens": None})
        assert counted.json() == {"input_tokens": len(submitted.prompt_token_ids)}
        worker.send(wire.SequenceOutput(sequence_id=submitted.sequence_id, finish_reason="stop"))
    assert tokenization.encode_text("be brief")


def test_many_counts_at_once_are_answered_by_a_full_server(start_gateway: StartGateway) -> None:
    """An agent counts its tools and memories, one request each, all at once."""
    gateway = start_gateway(max_waiting=0)
    worker = gateway.start_worker(facts=model_facts(max_running=1))

    def count(idx: int) -> int:
        body = {"messages": [{"role": "user", "content": "foo"}], "tools": [TOOLS[0] | {"name": f"tool_{idx}"}]}
        return gateway.client.post(f"{PATH}/count_tokens", json=body).json()["input_tokens"]

    with open_stream(gateway), concurrent.futures.ThreadPoolExecutor(12) as pool:
        submitted = worker.next_submitted()
        assert all(num_tokens > 10 for num_tokens in pool.map(count, range(25)))
        worker.send(wire.SequenceOutput(sequence_id=submitted.sequence_id, finish_reason="stop"))


def test_the_list_of_models_is_read_by_clients_of_both_families(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    listing = gateway.client.get("/v1/models?limit=1000").json()
    [model] = listing["data"]
    assert ModelInfo.model_validate(model).max_input_tokens == 4095
    assert openai.types.Model.model_validate(model).id == "tiny"
    assert (listing["object"], listing["has_more"], listing["first_id"], listing["last_id"]) == (
        "list",
        False,
        "tiny",
        "tiny",
    )


# Errors


def check_error(response: httpx.Response, status: int, kind: str) -> str:
    """An answer that is an error as Anthropic's clients read it; returns its message."""
    answer = response.json()
    assert (response.status_code, set(answer), answer["type"]) == (status, {"type", "error", "request_id"}, "error")
    assert set(answer["error"]) == {"type", "message"}
    assert answer["error"]["type"] == kind
    assert answer["request_id"] == response.headers["request-id"]
    return answer["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "status", "kind", "message"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens: got 0, allowed: an integer of at least 1"),
        ({"max_tokens": -1}, 400, "invalid_request_error", "max_tokens: got -1"),
        ({"temperature": "0.7"}, 400, "invalid_request_error", 'temperature: got "0.7", allowed: '),
        ({"temperature": 9}, 400, "invalid_request_error", "temperature: got 9.0, allowed: 0 to 2"),
        (
            {"stop_sequences": [""]},
            400,
            "invalid_request_error",
            'stop_sequences[0]: got "", allowed: string of length >= 1',
        ),
        ({"messages": []}, 400, "invalid_request_error", "messages: got []"),
        ({"model": "claude-9"}, 404, "not_found_error", "model: got 'claude-9', served: tiny"),
        (
            {"messages": [{"role": "user", "content": "w " * 5000}]},
            400,
            "invalid_request_error",
            "prompt is too long: ",
        ),
        ({"mcp_servers": [{"name": "x"}]}, 400, "invalid_request_error", "mcp_servers: got "),
        ({"stop": "x"}, 400, "invalid_request_error", "stop: got 'x', allowed: null: say stop_sequences"),
    ],
)
def test_refusals(start_gateway: StartGateway, fields: dict[str, Any], status: int, kind: str, message: str) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    for stream in (False, True):
        assert message in check_error(ask(gateway, stream=stream, **fields), status, kind)


@pytest.mark.parametrize("fields", [{"messages": []}, {"model": "claude-9"}, {"messages": [{"role": "tool"}]}])
def test_what_makes_no_prompt_is_not_counted(start_gateway: StartGateway, fields: dict[str, Any]) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    refused, asked = gateway.client.post(f"{PATH}/count_tokens", json=BODY | fields), ask(gateway, **fields)
    assert refused.status_code == asked.status_code
    assert refused.json()["error"] == asked.json()["error"]


def test_a_prompt_that_is_too_long_is_counted(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    body = {"messages": [{"role": "user", "content": "w " * 5000}]}
    assert gateway.client.post(f"{PATH}/count_tokens", json=body).json()["input_tokens"] > 4096


def test_errors_of_all_kinds_have_the_called_apis_shape(start_gateway: StartGateway) -> None:
    gateway = start_gateway(api_key=("key",), max_body_bytes=1024)
    headers = {"x-api-key": "key", "anthropic-version": "2023-06-01"}
    post, get = gateway.client.post, gateway.client.get
    check_error(post(PATH, json=BODY), 401, "authentication_error")
    check_error(post(PATH, json=BODY, headers={"x-api-key": "other"}), 401, "authentication_error")
    unavailable = post(PATH, json=BODY, headers=headers)
    check_error(unavailable, 503, "overloaded_error")
    assert int(unavailable.headers["retry-after"]) >= 1
    check_error(post(PATH, content=b"{", headers=headers), 503, "overloaded_error")
    gateway.start_worker()
    check_error(post(PATH, content=b"{", headers=headers), 400, "invalid_request_error")
    check_error(post(PATH, content=b"x" * 1025, headers=headers), 413, "request_too_large")
    check_error(post(PATH, content=b"{}", headers=headers | {"content-encoding": "gzip"}), 415, "invalid_request_error")
    check_error(get(PATH, headers=headers), 405, "invalid_request_error")
    check_error(get(f"{PATH}/batches", headers=headers), 404, "not_found_error")
    check_error(get("/v1/models/other", headers=headers), 404, "not_found_error")
    assert get("/v1/models/other", headers={"x-api-key": "key"}).json()["error"]["code"] == "model_not_found"
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        assert post(path, content=b"{", headers=headers).json()["error"]["code"] == "invalid_json"
    assert get("/v1/models", headers=headers | {"authorization": "Bearer other"}).status_code == 200


def test_a_full_server_says_when_to_try_again(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_waiting=0)
    worker = gateway.start_worker(facts=model_facts(max_running=1))
    with open_stream(gateway):
        worker.next_submitted()
        for stream in (False, True):
            response = ask(gateway, stream=stream)
            check_error(response, 429, "rate_limit_error")
            assert 1 <= int(response.headers["retry-after"]) <= 60


# Streams that are silent, and streams that cannot be completed


def test_a_silent_stream_pings_from_admission_on(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway(keep_alive_seconds=0.01)
    worker = gateway.start_worker()
    with open_stream(gateway) as lines:
        sequence_id = worker.next_submitted().sequence_id
        for _ in range(3):
            next_event(lines, "ping")
        worker.send(token(tokenization, sequence_id, "x"))
        next_event(lines, "content_block_delta")
        next_event(lines, "ping")
        worker.send(wire.SequenceOutput(sequence_id=sequence_id, finish_reason="stop"))
        next_event(lines, "message_stop")
    assert b"lineclear_sse_keepalives_total 0.0" not in render_metrics(gateway)


def test_a_lost_worker_before_any_news_is_not_noticed(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway(keep_alive_seconds=0.01)
    worker = gateway.start_worker()
    with open_stream(gateway) as lines:
        worker.next_submitted()
        next_event(lines, "ping")
        worker.kill()
        gateway.start_worker(life=2, script=says(tokenization, "x"))
        assert next_event(lines, "message_start")["message"]["content"] == []
        next_event(lines, "message_stop")


def test_a_stream_that_cannot_be_completed_tells_where_another_would_be_served(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    gateway.start_worker(worker_id="worker-1")
    with open_stream(gateway) as lines:
        worker.send(token(tokenization, worker.next_submitted().sequence_id, "some"))
        next_event(lines, "content_block_delta")
        worker.kill()
        [error] = [event for event in parse_events("\n".join(lines)) if event["type"] == "error"]
    assert (error["error"]["type"], bool(error["request_id"])) == ("overloaded_error", True)
    assert num_ended(gateway, Outcome.FAILED) == 1


def test_a_stream_that_cannot_be_completed_is_cut_where_none_would_be_served(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    received: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError), open_stream(gateway) as lines:  # noqa: PT012 - a stream's whole life
        worker.send(token(tokenization, worker.next_submitted().sequence_id, "some"))
        next_event(lines, "content_block_delta")
        worker.kill()
        for line in lines:
            received.append(line)  # noqa: PERF402 - extend would lose all of it
    assert "".join(received) == ""
    assert num_ended(gateway, Outcome.FAILED) == 1


def test_a_client_that_leaves_ends_its_sequence(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with open_stream(gateway):
        sequence_id = worker.next_submitted().sequence_id
    assert worker.next_cancelled() == sequence_id
    gateway.wait_until(lambda: num_ended(gateway, Outcome.DISCONNECTED) == 1)
