"""The `openai` SDK's Responses API against `lineclear serve`: real gateway, real worker, the bundled model."""

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall

from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, EditTask, check, generate
from tests.e2e.processes import PATIENCE_SECONDS, running

pytestmark = pytest.mark.e2e

MODEL = "lineclear-tiny"
ASKED: dict[str, Any] = {
    "model": MODEL,
    "input": "Continue: def main(arguments):",
    "max_output_tokens": 40,
    "temperature": 0,
    "store": False,
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    command = ["-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", "16384"]
    with running(command) as program:
        url = program.wait_for(r"lineclear ready on (http://\S+)")[1]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=PATIENCE_SECONDS, max_retries=0) as sdk:
            yield sdk


def tools_of(task: EditTask) -> list[Any]:
    return [{"type": "function", "strict": False} | tool["function"] for tool in task.tools or []]


def tasks(num_tasks: int) -> list[EditTask]:
    seeds = range(HELD_OUT_FIRST_SEED, HELD_OUT_FIRST_SEED + num_tasks)
    return [generate(seed, kind="tool_read", target_tokens=300) for seed in seeds]


def calls_of(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if item.type == "function_call"]


def in_chat_words(response: Response) -> dict[str, Any]:
    """The response as the tasks' own check knows it."""
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls_of(response)
    ]
    return {"role": "assistant", "content": response.output_text or None, "tool_calls": calls}


def test_a_stream_says_what_an_answer_in_one_piece_says(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASKED)
    events = list(client.responses.create(**ASKED, stream=True))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    [streamed] = [event.response for event in events if event.type in {"response.completed", "response.incomplete"}]
    assert "".join(pieces) == streamed.output_text == whole.output_text
    assert len(pieces) > 1
    assert whole.usage is not None
    assert streamed.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.status == whole.status


def test_usage_tells_what_was_cached(client: openai.OpenAI) -> None:
    asked = ASKED | {"input": "import os, sys, json, re, time, struct\n" * 8}
    usages = [client.responses.create(**asked).usage for _ in range(2)]
    cached = [usage.input_tokens_details.cached_tokens for usage in usages if usage is not None]
    assert cached[0] == 0
    assert cached[1] > 0


def test_a_tool_call_streams_with_the_arguments_of_the_prompt_and_its_result_is_answered(
    client: openai.OpenAI,
) -> None:
    num_exact = 0
    for task in tasks(8):
        asked = ASKED | {"max_output_tokens": 200, "tools": tools_of(task)}
        messages: list[Any] = list(task.messages)
        with client.responses.stream(**asked | {"input": messages}) as stream:
            for _ in stream:
                pass
            response = stream.get_final_response()
        calls = calls_of(response)
        if not calls or response.status != "completed":
            continue
        assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
        num_exact += check(task, in_chat_words(response))
        results = [{"type": "function_call_output", "call_id": call.call_id, "output": "import os"} for call in calls]
        said = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        answer = client.responses.create(**asked | {"input": [*messages, *said, *results], "max_output_tokens": 8})
        assert answer.usage is not None
        assert answer.usage.input_tokens_details.cached_tokens > 0
    assert num_exact >= 4


def test_reasoning(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASKED, reasoning={"effort": "high", "summary": "auto"})
    assert response.output[0].type == "reasoning"
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_an_answer_that_is_too_long_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASKED | {"max_output_tokens": 3}, extra_body={"ignore_eos": True})
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"temperature": 9}, openai.BadRequestError, "invalid_value"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
        ({"input": "word " * 20_000}, openai.BadRequestError, "context_length_exceeded"),
        ({"previous_response_id": "resp_1"}, openai.BadRequestError, "unserved_field"),
    ],
)
def test_errors_are_the_sdks_own(
    client: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], code: str
) -> None:
    for stream in (False, True):
        with pytest.raises(error) as raised:
            client.responses.create(**ASKED | fields, stream=stream)
        assert raised.value.code == code
        assert raised.value.request_id


def test_a_client_that_leaves_frees_the_blocks(client: openai.OpenAI) -> None:
    endless = ASKED | {"max_output_tokens": 12_000, "extra_body": {"ignore_eos": True}}
    with client.responses.create(**endless, stream=True) as stream:
        next(event for event in stream if event.type == "response.output_text.delta")
    root = str(client.base_url).removesuffix("/v1/")
    while True:
        metrics = client._client.get(f"{root}/metrics").text
        running_now = re.search(r"^lineclear_worker_running\S* (\S+)$", metrics, re.MULTILINE)
        if running_now is not None and float(running_now[1]) == 0:
            break
    assert 'lineclear_client_disconnects_total{phase="decode"} 1.0' in metrics
