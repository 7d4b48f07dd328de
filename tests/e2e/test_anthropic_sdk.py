"""The `anthropic` SDK against `lineclear serve`: real gateway, real worker, the bundled model."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, EditTask, check, generate
from tests.e2e.processes import PATIENCE_SECONDS, Program, children_by_command, running

pytestmark = pytest.mark.e2e

MODEL = "lineclear-tiny"
KEY = "a-key-of-this-test"
MESSAGES: list[Any] = [{"role": "user", "content": "Continue: def main(arguments):"}]
GREEDY: dict[str, Any] = {"temperature": 0}
"""Not among the parameters of this SDK's newest versions; the API still has it."""
ASKED: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 40, "extra_body": GREEDY}
ENDLESS: dict[str, Any] = ASKED | {"max_tokens": 12_000, "extra_body": GREEDY | {"ignore_eos": True}}


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    command = ["-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", "16384", "--api-key", KEY]
    with running(command) as server:
        yield server


@pytest.fixture(scope="module")
def client(program: Program) -> Iterator[anthropic.Anthropic]:
    url = program.wait_for(r"lineclear ready on (http://\S+)")[1]
    with anthropic.Anthropic(base_url=url, api_key=KEY, timeout=PATIENCE_SECONDS, max_retries=0) as sdk:
        yield sdk


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def tools_of(task: EditTask) -> list[Any]:
    functions = [tool["function"] for tool in task.tools or []]
    return [
        {"name": each["name"], "description": each.get("description", ""), "input_schema": each["parameters"]}
        for each in functions
    ]


def tasks(num_tasks: int) -> list[EditTask]:
    seeds = range(HELD_OUT_FIRST_SEED, HELD_OUT_FIRST_SEED + num_tasks)
    return [generate(seed, kind="tool_read", target_tokens=300) for seed in seeds]


def in_chat_words(message: Message) -> dict[str, Any]:
    """The message as the tasks' own check knows it."""
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": json.dumps(block.input)}}
        for block in message.content
        if block.type == "tool_use"
    ]
    return {"role": "assistant", "content": text_of(message) or None, "tool_calls": calls}


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).type == "model"


def test_a_stream_says_what_an_answer_in_one_piece_says(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert "".join(pieces) == text_of(streamed) == text_of(whole)
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert len(pieces) > 1
    assert whole._request_id


def test_usage_tells_what_was_cached(client: anthropic.Anthropic) -> None:
    asked = ASKED | {"messages": [{"role": "user", "content": "import os, sys, json, re, time, struct\n" * 8}]}
    counted = client.messages.count_tokens(model=MODEL, messages=asked["messages"]).input_tokens
    first, second = (client.messages.create(**asked).usage for _ in range(2))
    assert (first.input_tokens, first.cache_read_input_tokens) == (counted, 0)
    assert second.cache_read_input_tokens
    assert second.input_tokens + second.cache_read_input_tokens == counted
    with client.messages.stream(**asked) as stream:
        start = next(event for event in stream if event.type == "message_start")
    assert start.message.usage.cache_read_input_tokens == second.cache_read_input_tokens


def test_a_tool_call_streams_with_the_arguments_of_the_prompt_and_its_result_is_answered(
    client: anthropic.Anthropic,
) -> None:
    num_exact = 0
    for task in tasks(8):
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "extra_body": GREEDY, "tools": tools_of(task)}
        messages: list[Any] = list(task.messages)
        with client.messages.stream(messages=messages, **asked) as stream:
            message = stream.get_final_message()
        calls = [block for block in message.content if block.type == "tool_use"]
        if message.stop_reason != "tool_use":
            continue
        num_exact += check(task, in_chat_words(message))
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "import os"} for call in calls]
        again = [*messages, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        answer = client.messages.create(messages=again, **asked | {"max_tokens": 8})
        assert answer.usage.cache_read_input_tokens
    assert num_exact >= 4


def test_a_call_that_must_be_made_is_made(client: anthropic.Anthropic) -> None:
    task = tasks(1)[0]
    tools = tools_of(task)
    asked = ASKED | {"messages": task.messages, "max_tokens": 200, "tools": tools}
    asked |= {"tool_choice": {"type": "tool", "name": tools[0]["name"]}}
    message = client.messages.create(**asked)
    assert [(block.type, message.stop_reason) for block in message.content] == [("tool_use", "tool_use")]


def test_thinking(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASKED, thinking={"type": "adaptive"})
    assert message.content[0].type == "thinking"
    assert message.usage.output_tokens_details is not None


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    asked = ENDLESS | {"max_tokens": 40}
    text = text_of(client.messages.create(**asked))
    stop = text[5:8]
    message = client.messages.create(**asked, stop_sequences=[stop])
    assert text_of(message) == text[: text.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"extra_body": {"temperature": 9}}, anthropic.BadRequestError),
        ({"model": "claude-9"}, anthropic.NotFoundError),
        ({"messages": [{"role": "user", "content": "word " * 20_000}]}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, anthropic.BadRequestError),
    ],
)
def test_errors_are_the_sdks_own(
    client: anthropic.Anthropic, fields: dict[str, Any], error: type[anthropic.APIStatusError]
) -> None:
    for stream in (False, True):
        with pytest.raises(error) as raised:
            client.messages.create(**ASKED | fields, stream=stream)
        assert raised.value.request_id
        assert isinstance(raised.value.body, dict)
        assert raised.value.body["type"] == "error"


def test_a_wrong_key_is_refused(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(**ASKED)


def test_a_client_that_leaves_frees_the_blocks(client: anthropic.Anthropic) -> None:
    with client.messages.create(**ENDLESS, stream=True) as stream:
        next(event for event in stream if event.type == "content_block_delta")
    while True:
        metrics = client.get("/metrics", cast_to=str)
        running_now = re.search(r"^lineclear_worker_running\S* (\S+)$", metrics, re.MULTILINE)
        if running_now is not None and float(running_now[1]) == 0:
            break
    assert re.search(r'^lineclear_client_disconnects_total\{phase="decode"\} [1-9]', metrics, re.MULTILINE)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
def test_a_killed_worker_never_looks_like_an_end_and_the_next_one_serves(
    client: anthropic.Anthropic, program: Program
) -> None:
    before = text_of(client.messages.create(**ASKED))
    kinds: list[str] = []
    with pytest.raises(Exception) as raised, client.messages.create(**ENDLESS, stream=True) as stream:  # noqa: PT011, PT012
        for event in stream:
            kinds.append(event.type)
            if kinds.count("content_block_delta") == 1:
                os.kill(children_by_command(program.process.pid)["decode-0"], signal.SIGKILL)
    assert "RemoteProtocolError" in type(raised.value).__name__ or isinstance(raised.value, anthropic.APIError)
    assert "message_stop" not in kinds
    program.wait_for(r"lineclear ready on")
    assert text_of(client.messages.create(**ASKED)) == before
