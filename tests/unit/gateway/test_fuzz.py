"""No body, however odd, is ever answered with a 500, and every refusal has the called API's shape."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lineclear.gateway.tokenization import Tokenization
from lineclear.protocol import wire
from tests.unit.gateway.conftest import RunningGateway

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)

CHAT_FIELDS = [
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop", "seed",
    "presence_penalty", "frequency_penalty", "logit_bias", "stream", "stream_options", "top_k", "min_p",
    "repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens", "lineclear", "logprobs",
    "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "response_format", "functions", "modalities",
    "reasoning_effort", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "prompt", "echo",
    "best_of", "suffix", "tokens",
]  # fmt: skip

messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"])},
    optional={
        "content": values | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": values}), max_size=2),
        "reasoning_content": values,
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"id": values, "function": st.fixed_dictionaries({"name": values, "arguments": values})}
            ),
            max_size=2,
        )
        | values,
        "tool_call_id": values,
        "name": values,
    },
)
tools = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.text(min_size=1), "parameters": values}),
    }
)
fields = st.dictionaries(st.sampled_from(CHAT_FIELDS), values, max_size=4)
bodies = st.builds(
    lambda extra, some_messages, some_tools: {"messages": some_messages, "tools": some_tools} | extra,
    fields,
    st.lists(messages, min_size=1, max_size=4),
    st.lists(tools, max_size=2),
)

blocks = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "image", "document", "search_result", "thinking", "tool_use", "tool_result", "x"]
        )
    },
    optional={
        "text": values,
        "thinking": values,
        "id": values,
        "name": values,
        "input": values,
        "tool_use_id": values,
        "content": values | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": values}), max_size=2),
        "is_error": values,
        "source": values
        | st.fixed_dictionaries({"type": st.sampled_from(["text", "content"])}, optional={"data": values}),
        "tool_name": values,
    },
)
anthropic_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "x"])},
    optional={"content": values | st.lists(blocks, max_size=3)},
)
anthropic_tools = st.fixed_dictionaries(
    {"name": st.text(min_size=1)},
    optional={"type": values, "input_schema": values, "description": values, "defer_loading": values},
)
MESSAGES_FIELDS = [
    "model", "system", "max_tokens", "stop_sequences", "stream", "tool_choice", "thinking", "output_config",
    "temperature", "top_p", "top_k", "metadata", "mcp_servers", "context_management", "betas", "ignore_eos", "seed",
]  # fmt: skip
anthropic_bodies = st.builds(
    lambda extra, some_messages, some_tools: {"messages": some_messages, "tools": some_tools} | extra,
    st.dictionaries(st.sampled_from(MESSAGES_FIELDS), values, max_size=4),
    st.lists(anthropic_messages, min_size=1, max_size=4),
    st.lists(anthropic_tools, max_size=2),
)

ITEM_TYPES = [
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
    "web_search_call", "x",
]  # fmt: skip
items = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(ITEM_TYPES) | values,
        "role": st.sampled_from(["developer", "user", "assistant", "x"]),
        "content": values
        | st.lists(st.fixed_dictionaries({"type": st.just("input_text"), "text": values}), max_size=2),
        "summary": values,
        "call_id": values,
        "name": values,
        "namespace": values,
        "arguments": values,
        "input": values,
        "output": values,
    },
)
response_tools = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "namespace", "web_search"])},
    optional={
        "name": st.text(min_size=1),
        "parameters": values,
        "format": values,
        "description": values,
        "tools": values,
    },
)
RESPONSES_FIELDS = [
    "model", "instructions", "max_output_tokens", "stream", "tool_choice", "parallel_tool_calls", "reasoning", "text",
    "metadata", "store", "include", "previous_response_id", "truncation", "background", "temperature", "seed",
]  # fmt: skip
response_bodies = st.builds(
    lambda extra, some_items, some_tools: {"input": some_items, "tools": some_tools} | extra,
    st.dictionaries(st.sampled_from(RESPONSES_FIELDS), values, max_size=4),
    st.lists(items, min_size=1, max_size=4) | values,
    st.lists(response_tools, max_size=2),
)

BODIES = {
    "/v1/chat/completions": bodies,
    "/v1/completions": bodies,
    "/tokenize": bodies,
    "/detokenize": bodies,
    "/v1/messages": anthropic_bodies,
    "/v1/messages/count_tokens": anthropic_bodies,
    "/v1/responses": response_bodies,
}
PATHS = list(BODIES)


@pytest.fixture
def gateway(start_gateway: Callable[..., RunningGateway], tokenization: Tokenization) -> RunningGateway:
    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        token_ids = tokenization.encode_text("an answer")
        logprobs = None
        if submitted.sampling.logprobs is not None:
            logprobs = [wire.TokenLogprobs(token_id=token_id, logprob=-1.0) for token_id in token_ids]
        return [
            wire.SequenceOutput(
                sequence_id=submitted.sequence_id, token_ids=token_ids, logprobs=logprobs, finish_reason="stop"
            )
        ]

    running = start_gateway(max_waiting=300)
    running.start_worker(script=script)
    return running


def check_answer(gateway: RunningGateway, path: str, body: bytes) -> None:
    response = gateway.client.post(path, content=body)
    assert response.status_code in {200, 400, 404}, response.text
    if response.status_code == 200:
        return
    error = response.json()["error"]
    assert error["message"]
    if path.startswith("/v1/messages"):
        assert set(error) == {"message", "type"}
        assert error["type"] == {400: "invalid_request_error", 404: "not_found_error"}[response.status_code]
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"


fuzzed = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.mark.parametrize("path", PATHS)
def test_odd_values_in_known_fields(gateway: RunningGateway, path: str) -> None:
    @fuzzed
    @given(body=BODIES[path])
    @example(body={"prompt": "x", "n": 3, "stop": ["a"] * 17})
    @example(body={"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"": [], "a b": 1}})
    @example(
        body={"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinking": {"": 0}}}
    )
    @example(body={"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"raise_exception": 1}})
    @example(body={"messages": [{"role": "user", "content": "x"}], "temperature": -0.0, "top_p": 1e-320})
    def check(body: dict[str, Any]) -> None:
        check_answer(gateway, path, json.dumps(body).encode())

    check()


@pytest.mark.parametrize("path", PATHS)
def test_any_bytes(gateway: RunningGateway, path: str) -> None:
    @fuzzed
    @given(body=st.binary(max_size=64) | values.map(lambda value: json.dumps(value).encode()))
    def check(body: bytes) -> None:
        check_answer(gateway, path, body)

    check()


def test_damaged_bodies(gateway: RunningGateway) -> None:
    whole = json.dumps(
        {"messages": [{"role": "user", "content": "héllo \\ud83d"}], "temperature": 0.5, "n": 1}
    ).encode()

    @fuzzed
    @given(place=st.integers(0, len(whole) - 1), piece=st.binary(max_size=3))
    def check(place: int, piece: bytes) -> None:
        check_answer(gateway, PATHS[0], whole[:place] + piece + whole[place + 1 :])

    check()
