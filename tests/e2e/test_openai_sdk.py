"""The `openai` SDK against `lineclear serve`: real gateway, real worker, the bundled model."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, EditTask, check, generate
from tests.e2e.processes import PATIENCE_SECONDS, running

pytestmark = pytest.mark.e2e

MODEL = "lineclear-tiny"
KEY = "a-key-of-this-test"
MESSAGES: list[Any] = [{"role": "user", "content": "Continue: def main(arguments):"}]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    command = ["-m", "lineclear", "serve", "--port", "0", "--max-total-tokens", "16384", "--api-key", KEY]
    with running(command) as program:
        url = program.wait_for(r"lineclear ready on (http://\S+)")[1]
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=PATIENCE_SECONDS, max_retries=0) as sdk:
            yield sdk


def text_of(chunks: Iterable[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def collect(chunks: Iterable[ChatCompletionChunk]) -> tuple[dict[str, Any], str | None]:
    """The message that a stream adds up to, and the reason of its end."""
    content, reason = "", None
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for delta in choice.delta.tool_calls or ():
            assert delta.function is not None
            if delta.index == len(calls):
                assert delta.id
                calls.append(
                    {"id": delta.id, "type": "function", "function": {"name": delta.function.name, "arguments": ""}}
                )
            calls[delta.index]["function"]["arguments"] += delta.function.arguments or ""
    return {"role": "assistant", "content": content or None, "tool_calls": calls}, reason


def tool_tasks(num_tasks: int) -> list[EditTask]:
    seeds = range(HELD_OUT_FIRST_SEED, HELD_OUT_FIRST_SEED + num_tasks)
    return [generate(seed, kind="tool_read", target_tokens=300) for seed in seeds]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_stream_says_what_an_answer_in_one_piece_says(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
        chunks[-1].usage.prompt_tokens,
        chunks[-1].usage.completion_tokens,
    )
    [reason] = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert reason == whole.choices[0].finish_reason


def test_a_prompt_that_was_seen_before_is_cached(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "import os, sys, json, re, time, struct\n" * 8}]
    answers = [
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, temperature=0) for _ in range(2)
    ]
    usages = [answer.usage for answer in answers if answer.usage is not None]
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages if usage.prompt_tokens_details]
    assert cached[0] == 0
    assert cached[1] is not None
    assert usages[1].prompt_tokens - 17 <= cached[1] < usages[1].prompt_tokens
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_a_tool_call_streams_with_the_arguments_of_the_prompt(client: openai.OpenAI) -> None:
    num_exact = 0
    for task in tool_tasks(8):
        tools: list[Any] = task.tools or []
        chunks = client.chat.completions.create(
            model=MODEL, messages=task.messages, tools=tools, temperature=0, max_tokens=200, stream=True
        )
        message, reason = collect(chunks)
        if message["tool_calls"] and reason == "tool_calls":
            assert isinstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)
        num_exact += reason == "tool_calls" and check(task, message)
    assert num_exact >= 4


def test_a_call_that_must_be_made_is_made(client: openai.OpenAI) -> None:
    task = tool_tasks(1)[0]
    tools: list[Any] = task.tools or []
    name = tools[0]["function"]["name"]
    choice: Any = {"type": "function", "function": {"name": name}}
    answer = client.chat.completions.create(
        model=MODEL, messages=task.messages, tools=tools, tool_choice=choice, temperature=0, max_tokens=200
    ).choices[0]
    assert answer.message.content is None
    [call] = answer.message.tool_calls or []
    assert (call.function.name, answer.finish_reason) == (name, "tool_calls")
    assert isinstance(json.loads(call.function.arguments), dict)


def test_a_tool_result_can_be_answered(client: openai.OpenAI) -> None:
    task = tool_tasks(1)[0]
    call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
    messages: list[Any] = [
        *task.messages,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "import os"}]},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=task.tools or [], max_tokens=8)
    assert answer.usage is not None
    assert answer.usage.completion_tokens >= 0


def test_several_choices_differ_and_repeat_with_their_seed(client: openai.OpenAI) -> None:
    def sample() -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=MESSAGES, n=4, temperature=1.0, seed=11, max_tokens=24
        )
        return [choice.message.content for choice in answer.choices]

    first = sample()
    assert len(set(first)) > 1
    assert sample() == first


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=3, temperature=0, max_tokens=6
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs) <= 0.0


def test_stop_strings(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    text = client.chat.completions.create(**fields, extra_body={"ignore_eos": True}).choices[0].message.content or ""
    stop = text[5:8]
    answer = client.chat.completions.create(**fields, stop=stop, extra_body={"ignore_eos": True}).choices[0]
    assert answer.message.content == text[: text.index(stop)]
    assert answer.finish_reason == "stop"


def test_plain_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["import ", "def "], max_tokens=8, temperature=0, echo=True)
    assert [choice.text.startswith(prompt) for choice, prompt in zip(answer.choices, ["import ", "def "], strict=True)]
    chunks = list(client.completions.create(model=MODEL, prompt="import ", max_tokens=8, temperature=0, stream=True))
    assert "import " + "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def test_draft_figures_on_demand(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=32,
        temperature=0,
        extra_body={"ignore_eos": True, "lineclear": {"draft_figures": True}},
    )
    assert answer.model_extra is not None
    [figures] = answer.model_extra["lineclear"]["draft_figures"]
    assert 1.0 <= figures["accept_length"] <= 4.0
    assert len(figures["accepted_by_position"]) == 3


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"temperature": 9}, openai.BadRequestError, "invalid_value"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
        (
            {"messages": [{"role": "user", "content": "word " * 20_000}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, openai.BadRequestError, "invalid_value"),
    ],
)
def test_errors_are_the_sdks_own(
    client: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(error) as raised:
        client.chat.completions.create(**({"model": MODEL, "messages": MESSAGES} | fields))
    assert raised.value.code == code
    assert raised.value.request_id


def test_a_wrong_key_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_a_client_that_leaves_frees_the_blocks(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12_000, "stream": True}
    with client.chat.completions.create(**fields, extra_body={"ignore_eos": True}) as stream:
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
    root = str(client.base_url).removesuffix("/v1/")
    while True:
        metrics = client._client.get(f"{root}/metrics").text
        running_now = re.search(r"^lineclear_worker_running\S* (\S+)$", metrics, re.MULTILINE)
        if running_now is not None and float(running_now[1]) == 0:
            break
    assert 'lineclear_client_disconnects_total{phase="decode"} 1.0' in metrics
