"""Requests over real sockets, against workers that say what the test tells them."""

import concurrent.futures
import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from lineclear.gateway import serving
from lineclear.gateway.conversation import Conversation
from lineclear.gateway.ledger import Outcome
from lineclear.gateway.served_model import SamplingDefaults, TextAssets
from lineclear.gateway.template import ChatTemplate, Rendered
from lineclear.gateway.tokenization import Tokenization
from lineclear.protocol import wire
from lineclear.protocol.drafts import DraftCounts
from tests.unit.gateway.conftest import RunningGateway
from tests.unit.gateway.scripted_worker import WAIT_SECONDS, ScriptedWorker, model_facts

StartGateway = Callable[..., RunningGateway]
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}}},
    }
]


def says(tokenization: Tokenization, text: str, **ending: Any) -> Callable[..., list[wire.SequenceOutput]]:
    """A script: one output a token, then the ending."""

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        token_ids = tokenization.encode_prompt(text, add_special_tokens=False)
        sequence_id = submitted.sequence_id
        steps = [wire.SequenceOutput(sequence_id=sequence_id, token_ids=[token_id]) for token_id in token_ids]
        return [*steps, wire.SequenceOutput(sequence_id=sequence_id, **({"finish_reason": "stop"} | ending))]

    return script


def token(tokenization: Tokenization, sequence_id: int, text: str, **fields: Any) -> wire.SequenceOutput:
    return wire.SequenceOutput(sequence_id=sequence_id, token_ids=tokenization.encode_text(text), **fields)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def stream_text(events: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        for choice in event["choices"]
        if choice["index"] == index
    )


@contextmanager
def open_stream(gateway: RunningGateway, **fields: Any) -> Iterator[Iterator[str]]:
    """A stream that is read line by line."""
    body = {"messages": MESSAGES, "stream": True} | fields
    with gateway.client.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200, response.read()
        yield response.iter_lines()


def next_content(lines: Iterator[str]) -> str:
    """The next content of a stream that is not empty."""
    for line in lines:
        if line.startswith("data: "):
            content = json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content")
            if content:
                return content
    raise AssertionError("the stream ended")


def drain_into(lines: Iterator[str], received: list[str]) -> None:
    """Read a stream to its end, keeping what came before an error."""
    for line in lines:
        received.append(line)  # noqa: PERF402 - extend would lose all of it


def raw_request(gateway: RunningGateway, body: dict[str, Any], path: str = CHAT) -> socket.socket:
    """A connection on which a request was sent."""
    connection = socket.create_connection(("127.0.0.1", gateway.port), WAIT_SECONDS)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def num_ended(gateway: RunningGateway, outcome: Outcome) -> int:
    return gateway.gateway.ledger.statistics().num_ended[outcome]


# Answers


def test_a_chat_completion(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, "bonjour \U0001f99c", num_cached_tokens=0))
    answer = gateway.client.post(CHAT, json={"model": "tiny", "messages": MESSAGES}).json()
    [choice] = answer["choices"]
    assert choice["message"]["content"] == "bonjour \U0001f99c"
    assert (choice["finish_reason"], answer["object"], answer["model"]) == ("stop", "chat.completion", "tiny")
    submitted = worker.next_submitted()
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(submitted.prompt_token_ids)
    assert usage["completion_tokens"] == len(tokenization.encode_text("bonjour \U0001f99c"))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert submitted.sampling.max_tokens == 4096 - len(submitted.prompt_token_ids)
    assert num_ended(gateway, Outcome.COMPLETED) == 1


def test_a_stream_has_role_text_reason_and_usage_in_chunks_of_their_own(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "bonjour monde", num_cached_tokens=3))
    body = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    response = gateway.client.post(CHAT, json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    first, *middle, last, usage = events_of(response.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert stream_text(middle) == "bonjour monde"
    assert all(event["choices"][0]["finish_reason"] is None and event["usage"] is None for event in middle)
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert {event["object"] for event in (first, last, usage)} == {"chat.completion.chunk"}


def test_usage_is_left_out_unless_asked_for(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "a"))
    events = events_of(gateway.client.post(CHAT, json={"messages": MESSAGES, "stream": True}).text)
    assert all("usage" not in event and event["choices"] for event in events)


def test_reasoning_and_tool_calls_stream(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    text = "hm</think>Look: <tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
    gateway.start_worker(script=says(tokenization, text))
    body = {"messages": MESSAGES, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": True}}
    events = events_of(gateway.client.post(CHAT, json=body | {"stream": True}).text)
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [(call["index"], "id" in call, "name" in call["function"]) for call in calls][:2] == [
        (0, True, True),
        (0, False, False),
    ]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert (calls[0]["function"]["name"], json.loads(arguments)) == ("get_weather", {"city": "Paris"})
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert stream_text(events) == "Look:"
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"

    [choice] = gateway.client.post(CHAT, json=body).json()["choices"]
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["content"] == "Look:"
    [call] = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "get_weather", "arguments": '{"city": "Paris"}'})
    assert choice["finish_reason"] == "tool_calls"


def test_several_choices_share_a_prompt_and_have_their_own_seeds(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        return says(tokenization, f"seed {submitted.sampling.seed}", num_cached_tokens=submitted.sampling.seed)(
            submitted
        )

    worker = gateway.start_worker(script=script)
    body = {"messages": MESSAGES, "n": 3, "seed": 5, "stream": True, "stream_options": {"include_usage": True}}
    events = events_of(gateway.client.post(CHAT, json=body).text)
    assert [stream_text(events, index) for index in range(3)] == ["seed 5", "seed 6", "seed 7"]
    num_prompt_tokens = len(worker.next_submitted().prompt_token_ids)
    assert events[-1]["usage"]["prompt_tokens"] == num_prompt_tokens
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 5
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert reasons == ["stop"] * 3


def test_completions_of_several_prompts_with_echo(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, " world"))
    answer = gateway.client.post(
        "/v1/completions", json={"prompt": ["hello", "goodbye"], "n": 2, "echo": True, "max_tokens": 9}
    ).json()
    assert [choice["text"] for choice in answer["choices"]] == ["hello world"] * 2 + ["goodbye world"] * 2
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    lengths = [len(tokenization.encode_text(text)) for text in ("hello", "goodbye")]
    assert answer["usage"]["prompt_tokens"] == sum(lengths)
    assert worker.next_submitted().sampling.max_tokens == 9
    events = events_of(
        gateway.client.post("/v1/completions", json={"prompt": "hello", "echo": True, "stream": True}).text
    )
    assert "".join(event["choices"][0]["text"] for event in events) == "hello world"


def test_completions_take_token_ids(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, "x"))
    for prompt in ([5, 6, 7], [[5, 6, 7]]):
        gateway.client.post("/v1/completions", json={"prompt": prompt}).raise_for_status()
        assert worker.next_submitted().prompt_token_ids == [5, 6, 7]


def test_log_probabilities_in_both_shapes(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    token_ids = tokenization.encode_text("the")
    assert len(token_ids) == 1

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        logprobs = [wire.TokenLogprobs(token_id=token_ids[0], logprob=-0.5, top=[(token_ids[0], -0.5), (40, -1e30)])]
        sequence_id = submitted.sequence_id
        return [
            wire.SequenceOutput(sequence_id=sequence_id, token_ids=token_ids, logprobs=logprobs, finish_reason="length")
        ]

    worker = gateway.start_worker(script=script)
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    [entry] = gateway.client.post(CHAT, json=body).json()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("the", list(b"the"), -0.5)
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.5, -9999.0]
    assert worker.next_submitted().sampling.logprobs == 2

    events = events_of(gateway.client.post(CHAT, json=body | {"stream": True}).text)
    streamed = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
    assert [logprobs["content"][0]["token"] for logprobs in streamed] == ["the"]

    body = {"prompt": "a", "logprobs": 1}
    logprobs = gateway.client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert (logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"]) == (["the"], [-0.5], [0])
    assert logprobs["top_logprobs"][0]["the"] == -0.5


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_the_token_that_ends_an_answer_counts(
    start_gateway: StartGateway, tokenization: Tokenization, path: str, stream: bool
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, "the", stop_token_id=0))
    body: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "a"}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    response = gateway.client.post(path, json=body)
    answer = events_of(response.text)[-1] if stream else response.json()
    assert answer["usage"]["completion_tokens"] == 2
    worker.script = says(tokenization, "", stop_token_id=0)
    gateway.client.post(path, json=body).raise_for_status()
    gateway.wait_until(lambda: b'output_tokens_total{kind="text"} 3.0' in render_metrics(gateway))
    assert b"lineclear_time_to_first_token_seconds_count 2.0" in render_metrics(gateway)


@pytest.mark.parametrize("stream", [False, True])
def test_text_offsets_leave_hidden_tokens_out(
    start_gateway: StartGateway, tokenization: Tokenization, stream: bool
) -> None:
    gateway = start_gateway()
    token_ids = tokenization.encode_prompt("the<|user|>the", add_special_tokens=False)

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        sequence_id = submitted.sequence_id
        logprobs = [wire.TokenLogprobs(token_id=token_id, logprob=-1.0) for token_id in token_ids]
        return [
            wire.SequenceOutput(sequence_id=sequence_id, token_ids=[token_id], logprobs=[logprob])
            for token_id, logprob in zip(token_ids, logprobs, strict=True)
        ] + [wire.SequenceOutput(sequence_id=sequence_id, finish_reason="length")]

    gateway.start_worker(script=script)
    response = gateway.client.post("/v1/completions", json={"prompt": "a", "logprobs": 0, "stream": stream})
    answers = events_of(response.text) if stream else [response.json()]
    logprobs = [answer["choices"][0]["logprobs"] for answer in answers if answer["choices"][0]["logprobs"]]
    assert [token for each in logprobs for token in each["tokens"]] == ["the", "<|user|>", "the"]
    assert [offset for each in logprobs for offset in each["text_offset"]] == [0, 3, 3]


def test_log_probabilities_of_no_text_are_empty_lists(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    token_ids = tokenization.encode_text("the")

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        logprobs = [wire.TokenLogprobs(token_id=token_ids[0], logprob=-0.5)]
        return [wire.SequenceOutput(sequence_id=submitted.sequence_id, token_ids=token_ids, logprobs=logprobs)]

    gateway.start_worker(script=script)
    body = {"prompt": "a", "logprobs": 1, "stop": "t"}
    [choice] = gateway.client.post("/v1/completions", json=body).json()["choices"]
    assert choice["text"] == ""
    assert choice["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    body = {"messages": MESSAGES, "logprobs": True, "stop": "t"}
    [choice] = gateway.client.post(CHAT, json=body).json()["choices"]
    assert choice["logprobs"] == {"content": [], "refusal": None}


@pytest.mark.parametrize(
    ("fields", "param", "allowed"),
    [
        ({"prompt": ["a"] * 129}, "prompt", "at most 128"),
        ({"prompt": ["a"] * 9}, "prompt", "at most 8: more are never served at once"),
        ({"prompt": ["a"] * 3, "n": 3}, "n", "at most 8: more are never served at once"),
        ({"prompt": ["a"] * 2, "n": 100}, "n", "at most 128 choices for all 2 prompts together"),
    ],
)
def test_too_many_choices_name_the_field_that_asks_for_them(
    start_gateway: StartGateway, fields: dict[str, Any], param: str, allowed: str
) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    error = gateway.client.post("/v1/completions", json=fields).json()["error"]
    assert error["param"] == param
    assert error["message"].endswith(f"allowed: {allowed}")


@pytest.mark.parametrize("stream", [False, True])
def test_draft_figures_on_demand(start_gateway: StartGateway, tokenization: Tokenization, stream: bool) -> None:
    gateway = start_gateway()
    counts = DraftCounts(num_verifies=4, proposed_by_position=[4, 4], accepted_by_position=[3, 1])
    worker = gateway.start_worker(script=says(tokenization, "the end", draft=counts))
    body = {"messages": MESSAGES, "stream": stream, "lineclear": {"draft_figures": True}}
    response = gateway.client.post(CHAT, json=body)
    answer = events_of(response.text)[-1] if stream else response.json()
    [figures] = answer["lineclear"]["draft_figures"]
    assert figures == {
        "index": 0,
        "num_verifies": 4,
        "proposed_by_position": [4, 4],
        "accepted_by_position": [3, 1],
        "accept_length": 2.0,
        "accept_rate": 0.5,
    }
    assert worker.next_submitted().want_draft_counts
    assert "lineclear" not in gateway.client.post(CHAT, json={"messages": MESSAGES}).json()


def test_draft_figures_of_a_choice_that_a_stop_string_ended(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(answers_cancels=False)
    body = {"messages": MESSAGES, "stop": ".", "lineclear": {"draft_figures": True}}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(gateway.client.post, CHAT, json=body)
        sequence_id = worker.next_submitted().sequence_id
        worker.send(token(tokenization, sequence_id, "a.b"))
        assert worker.next_cancelled() == sequence_id
        counts = DraftCounts(num_verifies=1, proposed_by_position=[1], accepted_by_position=[1])
        worker.send(wire.SequenceOutput(sequence_id=sequence_id, finish_reason="cancelled", draft=counts))
        answer = future.result(WAIT_SECONDS).json()
    assert answer["choices"][0]["message"]["content"] == "a"
    assert answer["lineclear"]["draft_figures"][0]["num_verifies"] == 1


def test_a_stop_string_across_tokens_is_never_sent_and_cancels(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with open_stream(gateway, stop=["\nUser:"]) as lines:
        sequence_id = worker.next_submitted().sequence_id
        for piece in ("ok\nUs", "er", ":x", "more"):
            worker.send(token(tokenization, sequence_id, piece))
        text = "\n".join(lines)
    events = events_of(text)
    assert stream_text(events) == "ok"
    assert (events[-1]["choices"][0]["finish_reason"], events[-1]["choices"][0]["stop_reason"]) == ("stop", "\nUser:")
    assert worker.next_cancelled() == sequence_id
    gateway.wait_until(lambda: gateway.gateway.dispatcher.statistics().num_sequences == 0)


def test_extra_fields_reach_the_worker(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, "x"))
    body = {
        "messages": MESSAGES,
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "temperature": 0,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [9],
        "logit_bias": {"50": -100},
        "presence_penalty": 0.5,
        "seed": -4,
        "unknown_field": {"is": "ignored"},
    }
    gateway.client.post(CHAT, json=body).raise_for_status()
    sampling = worker.next_submitted().sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.is_greedy) == (7, 0.0, True)
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (40, 0.1, 1.1)
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.stop_token_ids) == (2, True, (9,))
    assert (sampling.logit_bias, sampling.presence_penalty, sampling.seed) == ({50: -100.0}, 0.5, -4)


def test_the_checkpoints_defaults_count_where_the_request_says_nothing(
    start_gateway: StartGateway, tokenization: Tokenization, assets: TextAssets
) -> None:
    text = TextAssets(tokenization, assets.template, SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20))
    gateway = start_gateway(text=text)
    worker = gateway.start_worker(script=says(tokenization, "x"))
    gateway.client.post(CHAT, json={"messages": MESSAGES, "top_k": -1}).raise_for_status()
    sampling = worker.next_submitted().sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, None)


def test_users_cannot_write_control_tokens(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, "x"))
    gateway.client.post(CHAT, json={"messages": [{"role": "user", "content": "a<|system|>b"}]}).raise_for_status()
    system = tokenization.vocabulary.control_id("<|system|>")
    assert system not in worker.next_submitted().prompt_token_ids


# Refusals


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "0.7"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 100}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": 7}, "stop"),
        ({"seed": 2**63}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 5000}, "min_tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": [*TOOLS, *TOOLS]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}, "tools": TOOLS}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"stream": "yes"}, "stream"),
        ({"lineclear": 3}, "lineclear"),
    ],
)
def test_impossible_requests_name_the_field(
    start_gateway: StartGateway, tokenization: Tokenization, fields: dict[str, Any], param: str
) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "x"))
    response = gateway.client.post(CHAT, json={"messages": MESSAGES} | fields)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"].startswith(param)
    assert "allowed" in error["message"] or "missing" in error["message"]
    assert num_ended(gateway, Outcome.COMPLETED) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [1, "a"]},
        {"prompt": [600]},
        {"prompt": [-1]},
        {"prompt": None},
        {"prompt": "a", "best_of": 3},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "echo": True, "logprobs": 1},
        {"prompt": "a", "logprobs": 21},
        {"prompt": ["a"] * 3, "n": 50},
        {"prompt": "a", "response_format": {"type": "json_schema"}},
        {"prompt": "a", "guided_regex": "a+"},
        {"prompt": "a", "stream_options": {"continuous_usage_stats": True}},
        {},
    ],
)
def test_impossible_completions_are_refused(
    start_gateway: StartGateway, tokenization: Tokenization, fields: dict[str, Any]
) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "x"))
    response = gateway.client.post("/v1/completions", json=fields)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b'{"messages": NaN}',
        b"\xff\xfe",
        b'{"messages":[{"role":"user","content":"a\\ud800b"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"temperature":1e999}',
        b"[" * 100_000,
        b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
    ],
)
def test_bodies_that_are_no_request(start_gateway: StartGateway, body: bytes) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    response = gateway.client.post(CHAT, content=body)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_prompt_that_is_too_long_is_told_in_words_that_agents_know(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says(tokenization, "x"), facts=model_facts(max_model_len=64, num_blocks=1024))
    fits = gateway.client.post("/v1/completions", json={"prompt": [5] * 63, "max_tokens": 32_000})
    assert fits.status_code == 200
    assert worker.next_submitted().sampling.max_tokens == 1
    response = gateway.client.post("/v1/completions", json={"prompt": [5] * 64})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("prompt is too long: 64 tokens > 63 maximum")
    response = gateway.client.post(CHAT, json={"messages": [{"role": "user", "content": "word " * 100}]})
    assert response.json()["error"]["param"] == "messages"


HOPELESS = "hello " * 200_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": HOPELESS}]}),
        (CHAT, {"messages": MESSAGES, "tools": [TOOLS[0] | {"description": HOPELESS}]}),
        ("/v1/completions", {"prompt": HOPELESS}),
        ("/v1/completions", {"prompt": ["a", HOPELESS]}),
        ("/tokenize", {"prompt": HOPELESS}),
        ("/tokenize", {"messages": [{"role": "user", "content": HOPELESS}]}),
    ],
    ids=["chat", "tools", "completion", "completions", "tokenize", "tokenize_chat"],
)
def test_a_hopelessly_long_prompt_is_refused_before_it_is_tokenized(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    gateway = start_gateway()
    gateway.start_worker(facts=model_facts(max_model_len=64))
    encode_runs = Tokenization._encode_runs
    longest: list[int] = []

    def encode(self: Tokenization, runs: list[str]) -> list[list[int]]:
        longest.append(max(map(len, runs)))
        return encode_runs(self, runs)

    monkeypatch.setattr(Tokenization, "_encode_runs", encode)
    error = gateway.client.post(path, json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert re.match(r"prompt is too long: at least \d+ tokens > 63 maximum", error["message"])
    assert max(longest, default=0) < 100


@pytest.mark.parametrize("prompt", [[5] * 5000, [[5], [5] * 5000], [0, 10**9] * 5000], ids=["one", "two", "unknown"])
def test_too_many_token_ids_are_refused(start_gateway: StartGateway, prompt: list[Any]) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    error = gateway.client.post("/v1/completions", json={"prompt": prompt}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_the_pool_limits_sequences_too(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.start_worker(facts=model_facts(num_blocks=2))
    error = gateway.client.post("/v1/completions", json={"prompt": [5] * 32}).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_unknown_models_and_paths_and_methods(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    response = gateway.client.post(CHAT, json={"model": "gpt-9", "messages": MESSAGES})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert gateway.client.get("/v1/models/gpt-9").status_code == 404
    assert gateway.client.get("/v1/nothing").json()["error"]["code"] == "not_found"
    response = gateway.client.get(CHAT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["error"]["code"] == "method_not_allowed"


def test_a_body_that_is_too_large_is_413_whether_it_says_so_or_not(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_body_bytes=2000)
    gateway.start_worker()
    announced = gateway.client.post(CHAT, content=b"x" * 3000)
    chunked = gateway.client.post(CHAT, content=iter([b"x" * 1500] * 2))
    for response in (announced, chunked):
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_compressed_bodies_are_415(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    response = gateway.client.post(CHAT, content=b"x", headers={"content-encoding": "gzip"})
    assert response.status_code == 415


def test_large_bodies_are_served(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    facts = model_facts(max_model_len=4_000_000, num_blocks=250_000)
    worker = gateway.start_worker(script=says(tokenization, "x"), facts=facts)
    content = "def hello(name): return name\n" * 40_000
    response = gateway.client.post(CHAT, json={"messages": [{"role": "user", "content": content}]})
    assert response.status_code == 200
    assert len(worker.next_submitted().prompt_token_ids) > 200_000


def test_api_keys(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway(api_key=("first", "second"))
    gateway.start_worker(script=says(tokenization, "x"))
    accepted = [
        {"authorization": "Bearer first"},
        {"authorization": "bearer second"},
        {"x-api-key": "first"},
    ]
    for headers in accepted:
        assert gateway.client.post(CHAT, json={"messages": MESSAGES}, headers=headers).status_code == 200
    refused = [
        {},
        {"authorization": "Bearer third"},
        {"authorization": "first"},
        {"authorization": "Basic first"},
        {"x-api-key": ""},
    ]
    for headers in refused:
        response = gateway.client.post(CHAT, json={"messages": MESSAGES}, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "first" not in response.text
    assert gateway.client.get("/v1/models").status_code == 401
    assert gateway.client.get("/health").status_code == 200
    assert gateway.client.get("/ready").status_code == 200


def test_request_ids(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    sent = gateway.client.get("/health", headers={"x-request-id": "mine-1"})
    assert sent.headers["x-request-id"] == "mine-1"
    made = {gateway.client.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert "x-request-id" in gateway.client.get("/nothing").headers


def test_probes(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    assert gateway.client.get("/health").json() == {"status": "alive"}
    assert gateway.client.head("/").status_code == 200
    assert gateway.client.options("/v1/models").status_code == 204
    response = gateway.client.get("/ready")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
    assert gateway.client.get("/v1/models").json()["data"] == []
    gateway.start_worker()
    assert gateway.client.get("/ready").json() == {"status": "ready"}
    [model] = gateway.client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 4096)
    assert gateway.client.get("/v1/models/tiny").json() == model


def test_the_served_name_may_be_chosen(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway(served_model_name="org/coder")
    gateway.start_worker(script=says(tokenization, "x"))
    assert gateway.client.post(CHAT, json={"model": "org/coder", "messages": MESSAGES}).json()["model"] == "org/coder"
    assert gateway.client.post(CHAT, json={"model": "tiny", "messages": MESSAGES}).status_code == 404
    assert gateway.client.get("/v1/models/org/coder").json()["id"] == "org/coder"


def test_the_promises_can_be_checked_while_it_runs(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    assert gateway.client.get("/invariants").json() == {"ok": True, "workers": []}
    worker = gateway.start_worker()
    response = gateway.client.get("/invariants")
    checked = {"worker": "worker-0", "life": 1, "ok": True, "detail": ""}
    assert (response.status_code, response.json()) == (200, {"ok": True, "workers": [checked]})
    worker.invariants = wire.InvariantsChecked(ok=False, detail="block 7 has no holder")
    response = gateway.client.get("/invariants")
    assert response.status_code == 500
    assert response.json()["workers"] == [checked | {"ok": False, "detail": "block 7 has no holder"}]


def test_tokenize_and_detokenize(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    tokens = gateway.client.post("/tokenize", json={"prompt": "hello \U0001f99c"}).json()
    assert tokens["tokens"] == tokenization.encode_text("hello \U0001f99c")
    assert (tokens["count"], tokens["max_model_len"]) == (len(tokens["tokens"]), 4096)
    text = gateway.client.post("/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert text == {"prompt": "hello \U0001f99c"}
    chat = gateway.client.post("/tokenize", json={"messages": MESSAGES}).json()["tokens"]
    assert gateway.client.post("/detokenize", json={"tokens": chat}).json()["prompt"].startswith("[gMASK]<sop><|user|>")
    assert gateway.client.post("/detokenize", json={"tokens": [600]}).json()["error"]["param"] == "tokens"
    assert gateway.client.post("/tokenize", json={"prompt": 5}).json()["error"]["param"] == "prompt"
    for body in ({"prompt": "a"}, {"messages": MESSAGES}):
        answer = gateway.client.post("/tokenize", json=body | {"truncate_prompt_tokens": 2})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "truncate_prompt_tokens")
    too_many = gateway.client.post("/detokenize", json={"tokens": [5] * (16 * 4096 + 1)})
    assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "tokens")


# Room


def test_full_is_429_and_room_comes_back(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway(max_waiting=1)
    worker = gateway.start_worker(facts=model_facts(max_running=1))
    with open_stream(gateway), open_stream(gateway) as lines:
        first, second = worker.next_submitted(), worker.next_submitted()
        response = gateway.client.post(CHAT, json={"messages": MESSAGES})
        assert (response.status_code, response.json()["error"]["code"]) == (429, "server_overloaded")
        assert int(response.headers["retry-after"]) >= 1
        worker.send(wire.SequenceOutput(sequence_id=second.sequence_id, finish_reason="stop"))
        assert [line for line in lines if line][-1] == "data: [DONE]"
        worker.script = says(tokenization, "x")
        assert gateway.client.post(CHAT, json={"messages": MESSAGES}).status_code == 200
        worker.send(wire.SequenceOutput(sequence_id=first.sequence_id, finish_reason="stop"))


def test_without_a_worker_it_is_503(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    response = gateway.client.post(CHAT, json={"messages": MESSAGES})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
    assert int(response.headers["retry-after"]) >= 1


def test_a_drain_finishes_what_runs_and_refuses_the_rest(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with open_stream(gateway) as lines:
        sequence_id = worker.next_submitted().sequence_id
        gateway.begin_drain()
        gateway.wait_until(lambda: not gateway.gateway.dispatcher.is_ready)
        response = gateway.client.post(CHAT, json={"messages": MESSAGES})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "server_draining")
        assert gateway.client.get("/ready").status_code == 503
        worker.send(token(tokenization, sequence_id, "bye", finish_reason="stop"))
        assert next_content(lines) == "bye"
        assert [line for line in lines if line][-1] == "data: [DONE]"
    gateway.join()
    assert worker.drained.is_set()


def test_a_drain_that_takes_too_long_ends_requests_with_an_error(start_gateway: StartGateway) -> None:
    gateway = start_gateway(drain_seconds=0.0)
    worker = gateway.start_worker()
    received: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError), open_stream(gateway) as lines:  # noqa: PT012 - a stream's whole life
        worker.next_submitted()
        gateway.begin_drain()
        received.extend(lines)
    gateway.join()
    assert num_ended(gateway, Outcome.FAILED) == 1
    assert worker.drained.is_set()


# Clients that leave


def test_a_client_that_leaves_while_queued_or_streaming_cancels(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    for stream in (False, True):
        connection = raw_request(gateway, {"messages": MESSAGES, "stream": stream})
        queued = worker.next_submitted().sequence_id
        connection.close()
        assert worker.next_cancelled() == queued

        connection = raw_request(gateway, {"messages": MESSAGES, "stream": stream})
        running = worker.next_submitted().sequence_id
        worker.send(token(tokenization, running, "some text"))
        if stream:
            while b"some" not in connection.recv(4096):
                pass
        connection.close()
        assert worker.next_cancelled() == running
    gateway.wait_until(lambda: num_ended(gateway, Outcome.DISCONNECTED) == 4)
    gateway.wait_until(lambda: gateway.gateway.dispatcher.statistics().num_sequences == 0)


class SlowTemplate:
    """A template whose rendering takes as long as a test wants."""

    def __init__(self, template: ChatTemplate | None) -> None:
        assert template is not None
        self._template = template
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def render(self, conversation: Conversation) -> Rendered:
        self.has_begun.set()
        assert self.may_end.wait(WAIT_SECONDS)
        return self._template.render(conversation)

    def preview(self, conversation: Conversation) -> str | None:
        return self._template.preview(conversation)


@pytest.fixture
def slow_template(assets: TextAssets) -> SlowTemplate:
    return SlowTemplate(assets.template)


def slow_text(tokenization: Tokenization, template: Any) -> TextAssets:
    return TextAssets(tokenization, template, SamplingDefaults())


def test_a_client_that_leaves_while_its_body_is_prepared_is_never_submitted(
    start_gateway: StartGateway, tokenization: Tokenization, slow_template: SlowTemplate
) -> None:
    gateway = start_gateway(text=slow_text(tokenization, slow_template))
    worker = gateway.start_worker()
    connection = raw_request(gateway, {"messages": MESSAGES})
    assert slow_template.has_begun.wait(WAIT_SECONDS)
    connection.close()
    gateway.wait_until(lambda: not gateway.gateway._server.server_state.connections)
    slow_template.may_end.set()
    gateway.wait_until(lambda: b'lineclear_client_disconnects_total{phase="prepare"} 1.0' in render_metrics(gateway))
    assert worker.submitted.empty()
    assert gateway.gateway.ledger.statistics().num_opened == 0


def test_others_are_served_while_a_body_is_prepared(
    start_gateway: StartGateway, tokenization: Tokenization, slow_template: SlowTemplate
) -> None:
    gateway = start_gateway(text=slow_text(tokenization, slow_template))
    gateway.start_worker(script=says(tokenization, "x"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        slow = pool.submit(gateway.client.post, CHAT, json={"messages": MESSAGES})
        assert slow_template.has_begun.wait(WAIT_SECONDS)
        assert gateway.client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        assert not slow.done()
        slow_template.may_end.set()
        assert slow.result(WAIT_SECONDS).status_code == 200


def test_too_many_bodies_at_once_are_refused(start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MAX_PREPARING", 0)
    gateway = start_gateway()
    gateway.start_worker()
    assert gateway.client.post(CHAT, json={"messages": MESSAGES}).status_code == 429


def test_every_choice_of_a_client_that_leaves_is_cancelled(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    connection = raw_request(gateway, {"messages": MESSAGES, "n": 3})
    submitted = {worker.next_submitted().sequence_id for _ in range(3)}
    connection.close()
    assert {worker.next_cancelled() for _ in range(3)} == submitted


def test_room_is_free_only_when_the_worker_says_so(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_waiting=0)
    worker = gateway.start_worker(facts=model_facts(max_running=1), answers_cancels=False)
    connection = raw_request(gateway, {"messages": MESSAGES})
    sequence_id = worker.next_submitted().sequence_id
    connection.close()
    assert worker.next_cancelled() == sequence_id
    assert gateway.client.post(CHAT, json={"messages": MESSAGES}).status_code == 429
    worker.send(wire.SequenceOutput(sequence_id=sequence_id, finish_reason="cancelled"))
    gateway.wait_until(lambda: gateway.gateway.dispatcher.statistics().num_sequences == 0)


def test_a_client_that_leaves_inside_its_body_leaves_nothing(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_SECONDS) as connection:
        connection.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{{".encode())
    assert gateway.client.get("/health").status_code == 200
    assert gateway.gateway.ledger.statistics().num_opened == 0


def test_pipelined_requests_are_answered_in_order(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "x"))
    body = json.dumps({"messages": MESSAGES}).encode()
    request = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    last = request.replace(b"host: x", b"host: x\r\nconnection: close")
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_SECONDS) as connection:
        connection.sendall(request + last)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert received.count(b"HTTP/1.1 200 OK") == 2


def pipelined_request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_sent_later", [False, True])
def test_a_client_that_leaves_with_requests_sent_ahead_cancels(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture, stream: bool, is_sent_later: bool
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    request = pipelined_request({"messages": MESSAGES, "stream": stream})
    connection = socket.create_connection(("127.0.0.1", gateway.port), WAIT_SECONDS)
    connection.sendall(request if is_sent_later else request * 3)
    running = worker.next_submitted().sequence_id
    if is_sent_later:
        connection.sendall(request * 2)
        [served] = gateway.gateway._server.server_state.connections
        gateway.wait_until(lambda: len(served.pipeline) == 2)
    connection.close()
    assert worker.next_cancelled() == running
    gateway.wait_until(lambda: num_ended(gateway, Outcome.DISCONNECTED) == 1)
    gateway.wait_until(lambda: not gateway.gateway._server.server_state.tasks)
    assert gateway.gateway.ledger.statistics().num_opened == 1
    assert worker.submitted.empty()
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


def test_a_client_that_leaves_after_the_first_of_its_answers(
    start_gateway: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_SECONDS) as connection:
        connection.sendall(pipelined_request({"messages": MESSAGES}) * 3)
        first = worker.next_submitted().sequence_id
        worker.send(wire.SequenceOutput(sequence_id=first, finish_reason="stop"))
        second = worker.next_submitted().sequence_id
    assert worker.next_cancelled() == second
    gateway.wait_until(lambda: num_ended(gateway, Outcome.DISCONNECTED) == 1)
    assert num_ended(gateway, Outcome.COMPLETED) == 1
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


def test_many_requests_may_be_sent_ahead(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "x"))
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_SECONDS) as connection:
        connection.settimeout(WAIT_SECONDS)
        requests = [
            pipelined_request({"messages": [{"role": "user", "content": "a" * 100 * idx}]}) for idx in range(30)
        ]
        connection.sendall(b"".join(requests))
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < len(requests):
            received += connection.recv(65_536)


@pytest.mark.parametrize("garbage", [b"\x00\x01garbage\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n"])
def test_what_is_no_http_is_told_so_in_the_shape_of_all_errors(start_gateway: StartGateway, garbage: bytes) -> None:
    gateway = start_gateway()
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_SECONDS) as connection:
        connection.sendall(garbage)
        head, _, body = b"".join(iter(lambda: connection.recv(65_536), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_garbage_behind_a_request_does_not_get_into_its_answer(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_SECONDS) as connection:
        connection.sendall(pipelined_request({"messages": MESSAGES, "stream": True}))
        worker.next_submitted()
        connection.sendall(b"\x00garbage\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert b"HTTP/1.1 400" not in received
    gateway.wait_until(lambda: num_ended(gateway, Outcome.DISCONNECTED) == 1)


# Workers that are lost


def finish_on(worker: ScriptedWorker, tokenization: Tokenization, text: str) -> None:
    sequence_id = worker.next_submitted().sequence_id
    worker.send(token(tokenization, sequence_id, text, finish_reason="stop"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_nothing_was_sent_of_is_begun_again_elsewhere(
    start_gateway: StartGateway, tokenization: Tokenization, stream: bool
) -> None:
    gateway = start_gateway()
    first = gateway.start_worker(worker_id="a")
    second = None
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(gateway.client.post, CHAT, json={"messages": MESSAGES, "stream": stream})
        first.next_submitted()
        second = gateway.start_worker(worker_id="b")
        first.kill()
        finish_on(second, tokenization, "again")
        response = future.result(WAIT_SECONDS)
    text = stream_text(events_of(response.text)) if stream else response.json()["choices"][0]["message"]["content"]
    assert text == "again"
    assert gateway.gateway.dispatcher.statistics().num_restarts == 1


def test_an_answer_in_one_piece_forgets_the_half_choice_of_a_lost_worker_and_keeps_the_whole_one(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    first = gateway.start_worker(worker_id="a")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(gateway.client.post, CHAT, json={"messages": MESSAGES, "n": 2})
        ids = [first.next_submitted().sequence_id for _ in range(2)]
        first.send(token(tokenization, ids[0], "whole", finish_reason="stop"))
        first.send(token(tokenization, ids[1], "half"))
        gateway.wait_until(lambda: gateway.gateway.dispatcher.statistics().num_sequences == 1)
        first.kill()
        second = gateway.start_worker(worker_id="b")
        finish_on(second, tokenization, "two")
        answer = future.result(WAIT_SECONDS).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["whole", "two"]
    assert answer["usage"]["completion_tokens"] == sum(len(tokenization.encode_text(t)) for t in ("whole", "two"))


def test_a_request_waits_for_the_next_life_of_its_worker(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    first = gateway.start_worker()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(gateway.client.post, CHAT, json={"messages": MESSAGES})
        first.next_submitted()
        first.kill()
        gateway.wait_until(lambda: gateway.gateway.dispatcher.statistics().num_waiting_for_worker == 1)
        assert gateway.client.post(CHAT, json={"messages": MESSAGES}).status_code == 503
        finish_on(gateway.start_worker(life=2), tokenization, "again")
        assert future.result(WAIT_SECONDS).json()["choices"][0]["message"]["content"] == "again"


def test_a_request_does_not_wait_for_ever(start_gateway: StartGateway) -> None:
    gateway = start_gateway(start_timeout_seconds=0.0)
    worker = gateway.start_worker()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(gateway.client.post, CHAT, json={"messages": MESSAGES})
        worker.next_submitted()
        worker.kill()
        response = future.result(WAIT_SECONDS)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
    assert num_ended(gateway, Outcome.FAILED) == 1


def test_a_request_that_ends_every_worker_is_given_up(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(gateway.client.post, CHAT, json={"messages": MESSAGES})
        for life in (2, 3):
            worker.next_submitted()
            worker.kill()
            worker = gateway.start_worker(life=life)
        worker.next_submitted()
        worker.kill()
        response = future.result(WAIT_SECONDS)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "worker_lost")


def test_a_stream_that_cannot_be_completed_says_so_and_is_cut(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    received: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError), open_stream(gateway) as lines:  # noqa: PT012 - a stream's whole life
        worker.send(token(tokenization, worker.next_submitted().sequence_id, "some"))
        assert next_content(lines) == "some"
        worker.kill()
        drain_into(lines, received)
    [comment] = [line for line in received if line]  # agents send again what was cut, and give up at an error event
    assert json.loads(comment.removeprefix(": error "))["error"]["code"] == "worker_lost"
    assert num_ended(gateway, Outcome.FAILED) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_worker_is_told(start_gateway: StartGateway, stream: bool) -> None:
    gateway = start_gateway()

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        return [wire.SequenceOutput(sequence_id=submitted.sequence_id, finish_reason="error", error="no blocks")]

    gateway.start_worker(script=script)
    if not stream:
        response = gateway.client.post(CHAT, json={"messages": MESSAGES})
        assert response.status_code == 500
        assert "no blocks" in response.json()["error"]["message"]
        return
    received: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError), open_stream(gateway) as lines:
        drain_into(lines, received)
    assert "no blocks" in received[-2]


def test_the_other_choices_of_a_failed_request_are_cancelled(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        future = pool.submit(gateway.client.post, CHAT, json={"messages": MESSAGES, "n": 2})
        failed, other = worker.next_submitted().sequence_id, worker.next_submitted().sequence_id
        worker.send(wire.SequenceOutput(sequence_id=failed, finish_reason="error", error="x"))
        assert worker.next_cancelled() == other
        assert future.result(WAIT_SECONDS).status_code == 500


def test_outputs_for_nobody_are_counted(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    worker.send(wire.SequenceOutput(sequence_id=999, finish_reason="stop"))
    gateway.wait_until(lambda: gateway.gateway.dispatcher.statistics().num_unknown_outputs == 1)


# Silence


def test_a_silent_stream_says_that_it_is_alive(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway(keep_alive_seconds=0.01)
    worker = gateway.start_worker()
    with open_stream(gateway) as lines:
        sequence_id = worker.next_submitted().sequence_id
        assert next(line for line in lines if line.startswith(":")) == ": keep-alive"
        worker.send(token(tokenization, sequence_id, "x"))
        assert next_content(lines) == "x"
        assert next(line for line in lines if line.startswith(":")) == ": keep-alive"
        worker.send(wire.SequenceOutput(sequence_id=sequence_id, finish_reason="stop"))


def test_text_that_is_held_back_does_not_silence_the_stream(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway(keep_alive_seconds=0.01)
    worker = gateway.start_worker()
    with open_stream(gateway, stop=["xyz"]) as lines:
        sequence_id = worker.next_submitted().sequence_id
        worker.send(token(tokenization, sequence_id, "xy"))
        gateway.wait_until(lambda: b"lineclear_time_to_first_token_seconds_count 1" in render_metrics(gateway))
        assert next(line for line in lines if line.startswith(":"))
        worker.send(wire.SequenceOutput(sequence_id=sequence_id, finish_reason="stop"))
        assert next_content(lines) == "xy"


def render_metrics(gateway: RunningGateway) -> bytes:
    return gateway.gateway.services.metrics.render()


def test_metrics_tell_what_happened(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    counts = DraftCounts(num_verifies=10, proposed_by_position=[10, 10], accepted_by_position=[8, 2])
    worker = gateway.start_worker(script=says(tokenization, "one two", num_cached_tokens=2))
    worker.figures = wire.WorkerStatistics(
        num_running=2, num_waiting=1, num_receiving=4, num_preemptions=3, num_damaged=1, blocks_free=10, blocks_held=5,
        blocks_quarantined=1, blocks_total=16, cached_prompt_tokens=100, prompt_tokens=200, output_tokens=300,
        draft=counts, steps=7, step_seconds_total=1.5,
        tiers=wire.TierStatistics(
            blocks={"host": wire.TierBlocks(free=1, held=2, quarantined=0, total=3, block_bytes=100)},
            hit_tokens={"host": 32}, moved_bytes={"load": 200}, moving_seconds={"load": 0.5}, num_waits=3,
            wait_seconds=0.25, num_prefetches=1, dropped_blocks=2, failures={"damaged": 1},
        ),
        guard=wire.GuardStatistics(
            num_judged_sequences=4, num_judged_tokens=90, num_forgotten_blocks=6, drift_by_position=[0.5, -1.5],
            highest_cusum=0.75,
        ),
    )  # fmt: skip
    gateway.client.post(CHAT, json={"messages": MESSAGES}).raise_for_status()
    gateway.client.post(CHAT, json={"messages": []})
    lines = gateway.client.get("/metrics").text.splitlines()
    expected = [
        'lineclear_requests_total{api="chat",error_type="",status="200",stream="false"} 1.0',
        'lineclear_requests_total{api="chat",error_type="invalid_value",status="400",stream="false"} 1.0',
        'lineclear_requests_ended_total{outcome="completed"} 1.0',
        'lineclear_prompt_tokens_total{cache="hit"} 2.0',
        'lineclear_worker_running{worker="worker-0"} 2.0',
        'lineclear_worker_waiting{worker="worker-0"} 1.0',
        'lineclear_worker_blocks_free{worker="worker-0"} 10.0',
        'lineclear_worker_blocks_held{worker="worker-0"} 5.0',
        'lineclear_worker_blocks_quarantined{worker="worker-0"} 1.0',
        'lineclear_worker_accept_length{worker="worker-0"} 2.0',
        'lineclear_worker_accept_rate{worker="worker-0"} 0.5',
        'lineclear_worker_drafts_accepted_total{position="1",worker="worker-0"} 2.0',
        'lineclear_worker_up{life="1",worker="worker-0"} 1.0',
        'lineclear_tier_blocks{state="held",tier="host",worker="worker-0"} 2.0',
        'lineclear_tier_bytes{state="free",tier="host",worker="worker-0"} 100.0',
        'lineclear_tier_hit_tokens_total{tier="host",worker="worker-0"} 32.0',
        'lineclear_tier_moved_bytes_total{copy="load",worker="worker-0"} 200.0',
        'lineclear_tier_moving_seconds_total{copy="load",worker="worker-0"} 0.5',
        'lineclear_tier_waits_total{worker="worker-0"} 3.0',
        'lineclear_tier_wait_seconds_total{worker="worker-0"} 0.25',
        'lineclear_tier_failures_total{kind="damaged",worker="worker-0"} 1.0',
        'lineclear_tier_prefetches{worker="worker-0"} 1.0',
        'lineclear_worker_judged_tokens_total{worker="worker-0"} 90.0',
        'lineclear_worker_judged_forgotten_blocks_total{worker="worker-0"} 6.0',
        'lineclear_worker_acceptance_drift{position="1",worker="worker-0"} -1.5',
        'lineclear_worker_cusum_highest{worker="worker-0"} 0.75',
        "lineclear_time_to_first_token_seconds_count 1.0",
    ]
    assert [line for line in expected if line not in lines] == []
