"""OpenAI's Responses API over real sockets, against workers that say what the test tells them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from lineclear.gateway.ledger import Outcome
from lineclear.gateway.tokenization import Tokenization
from lineclear.protocol import wire
from tests.unit.gateway.anthropic_events import parse_events
from tests.unit.gateway.conftest import RunningGateway
from tests.unit.gateway.openai_events import response_of, text_of
from tests.unit.gateway.scripted_worker import model_facts
from tests.unit.gateway.test_messages import ALL_KINDS, CALL, next_event, says_cached
from tests.unit.gateway.test_serving import num_ended, says, token

StartGateway = Callable[..., RunningGateway]
PATH = "/v1/responses"
BODY: dict[str, Any] = {"model": "tiny", "input": "hello", "store": False}
PARAMETERS = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}
PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}
PATCH_CALL = '<tool_call>apply_patch<arg_key>input</arg_key><arg_value>*** Begin\n"é"</arg_value></tool_call>'
THINK = {"effort": "high"}


def ask(gateway: RunningGateway, **fields: Any) -> httpx.Response:
    return gateway.client.post(PATH, json=BODY | fields)


def both_ways(gateway: RunningGateway, **fields: Any) -> dict[str, Any]:
    """The response, asked for in one piece and as a stream, which must say the same."""
    answer = ask(gateway, **fields)
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    Response.model_validate(whole)
    streamed = response_of(ask(gateway, stream=True, **fields).text)
    assert without_ids(streamed) == without_ids(whole)
    return streamed


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    items = [
        {name: value for name, value in item.items() if name not in {"id", "call_id"}} for item in response["output"]
    ]
    return response | {"output": items, "id": None, "created_at": None}


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


@contextmanager
def open_stream(gateway: RunningGateway, **fields: Any) -> Iterator[Iterator[str]]:
    with gateway.client.stream("POST", PATH, json=BODY | {"stream": True} | fields) as response:
        assert response.status_code == 200, response.read()
        yield response.iter_lines()


def test_a_response(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=says_cached(tokenization, "bonjour \U0001f99c", 3))
    response = both_ways(gateway, max_output_tokens=64, metadata={"a": "b"}, instructions="be brief")
    [message] = response["output"]
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert text_of(message) == "bonjour \U0001f99c"
    submitted = worker.next_submitted()
    num_output_tokens = len(tokenization.encode_text("bonjour \U0001f99c")) + 1
    assert response["usage"] == {
        "input_tokens": len(submitted.prompt_token_ids),
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(submitted.prompt_token_ids) + num_output_tokens,
    }
    assert submitted.sampling.max_tokens == 64
    assert (response["status"], response["metadata"], response["instructions"]) == ("completed", {"a": "b"}, "be brief")
    assert num_ended(gateway, Outcome.COMPLETED) == 2


def test_each_kind_has_items_of_its_own(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, ALL_KINDS))
    response = both_ways(gateway, tools=[WEATHER], reasoning=THINK)
    assert kinds(response) == ["reasoning", "message", "function_call", "function_call", "message"]
    assert [text_of(item) for item in response["output"]] == ["a", "b", '{"city": "Paris"}', "{}", "c"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert len({item["id"] for item in response["output"]}) == 5
    assert len({item["call_id"] for item in response["output"] if "call_id" in item}) == 2


def test_a_custom_tool_gets_its_text(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, PATCH_CALL + CALL))
    response = both_ways(gateway, tools=[PATCH, WEATHER])
    assert kinds(response) == ["custom_tool_call", "function_call"]
    assert [text_of(item) for item in response["output"]] == ['*** Begin\n"é"', '{"city": "Paris"}']


def test_a_tool_of_a_namespace_is_called_by_its_own_name(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    gateway = start_gateway()
    text = CALL.replace("get_weather", "agents__get_weather") + "<tool_call>wait</tool_call>"
    gateway.start_worker(script=says(tokenization, text))
    agents = {
        "type": "namespace",
        "name": "agents",
        "description": "d",
        "tools": [WEATHER, {"type": "function", "name": "wait"}],
    }
    response = both_ways(gateway, tools=[WEATHER, agents, {"type": "web_search"}])
    calls = [(item["name"], item["namespace"]) for item in response["output"]]
    assert calls == [("get_weather", "agents"), ("wait", "agents")]


def test_an_answer_that_is_too_long_is_incomplete(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "one two", finish_reason="length"))
    response = both_ways(gateway)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("call", [CALL, PATCH_CALL])
@pytest.mark.parametrize("finish_reason", ["length", "stop"])
def test_a_call_that_is_cut_off_is_nothing_to_run(
    start_gateway: StartGateway, tokenization: Tokenization, call: str, finish_reason: str
) -> None:
    gateway = start_gateway()
    token_ids = tokenization.encode_prompt(call, add_special_tokens=False)
    num_values = token_ids.index(tokenization.vocabulary.control_id("<arg_value>") or 0)

    def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        outputs = {"token_ids": token_ids[: num_values + 2], "finish_reason": finish_reason}
        return [wire.SequenceOutput(sequence_id=submitted.sequence_id, **outputs)]

    gateway.start_worker(script=script)
    [item] = both_ways(gateway, tools=[WEATHER, PATCH])["output"]
    assert item["status"] == "incomplete"
    if item["type"] == "custom_tool_call":
        assert item["input"] == ""
    else:
        with pytest.raises(json.JSONDecodeError):
            json.loads(item["arguments"])


def test_one_call_at_a_time(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, CALL + CALL))
    assert kinds(both_ways(gateway, tools=[WEATHER], parallel_tool_calls=False)) == ["function_call"]


def test_an_empty_answer(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "", stop_token_id=0))
    assert both_ways(gateway)["output"] == []


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens: got 0, allowed: an integer of at least 1"),
        ({"temperature": 9}, "invalid_value", "temperature: got 9.0, allowed: 0 to 2"),
        ({"input": None}, "invalid_type", "input: got null, allowed: "),
        ({"input": []}, "invalid_value", "input: got []"),
        ({"input": "w " * 5000}, "context_length_exceeded", "prompt is too long: "),
        ({"previous_response_id": "resp_1"}, "unserved_field", "previous_response_id: got 'resp_1', allowed: null: "),
        ({"background": True}, "unserved_field", "background: got True"),
        ({"truncation": "auto"}, "unserved_field", "truncation: got 'auto'"),
        ({"max_tokens": 5}, "unserved_field", "max_tokens: got 5, allowed: null: say max_output_tokens"),
    ],
)
def test_refusals(start_gateway: StartGateway, fields: dict[str, Any], code: str, message: str) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    for stream in (False, True):
        answer = ask(gateway, stream=stream, **fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (400, code, "invalid_request_error")
        assert error["message"].startswith(message)
        assert error["param"] == next(iter(fields))
    assert ask(gateway, model="gpt-9").json()["error"]["code"] == "model_not_found"


def test_a_full_server_says_when_to_try_again(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_waiting=0)
    worker = gateway.start_worker(facts=model_facts(max_running=1))
    with open_stream(gateway):
        worker.next_submitted()
        for stream in (False, True):
            answer = ask(gateway, stream=stream)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "server_overloaded")
            assert 1 <= int(answer.headers["retry-after"]) <= 60


def test_a_silent_stream_is_in_progress_from_admission_on(
    start_gateway: StartGateway, tokenization: Tokenization
) -> None:
    """A comment is no sign of life to all clients of this API."""
    gateway = start_gateway(keep_alive_seconds=0.01)
    worker = gateway.start_worker()
    with open_stream(gateway) as lines:
        sequence_id = worker.next_submitted().sequence_id
        numbers = [next_event(lines, "response.in_progress")["sequence_number"] for _ in range(4)]
        assert numbers == [1, 2, 3, 4]
        worker.send(token(tokenization, sequence_id, "x"))
        next_event(lines, "response.output_text.delta")
        next_event(lines, "response.in_progress")
        worker.send(wire.SequenceOutput(sequence_id=sequence_id, finish_reason="stop"))
        next_event(lines, "response.completed")


def test_a_sign_of_life_does_not_repeat_the_request(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=says(tokenization, "x"))
    fields = {"metadata": {"a": "x" * 5000}, "tools": [{"type": "web_search", "filters": {"b": "y" * 5000}}]}
    created, in_progress, *_, completed = parse_events(ask(gateway, stream=True, **fields).text)
    assert len(json.dumps(in_progress)) < 1000
    for event in (created, completed):
        assert (event["response"]["metadata"], event["response"]["tools"]) == (fields["metadata"], fields["tools"])


def test_a_stream_that_cannot_be_completed_has_failed(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with open_stream(gateway) as lines:
        worker.send(token(tokenization, worker.next_submitted().sequence_id, "some"))
        next_event(lines, "response.output_text.delta")
        worker.kill()
        [failed] = parse_events("\n".join(lines))
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "server_error"
    assert num_ended(gateway, Outcome.FAILED) == 1


def test_a_client_that_leaves_ends_its_sequence(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    with open_stream(gateway):
        sequence_id = worker.next_submitted().sequence_id
    assert worker.next_cancelled() == sequence_id
    gateway.wait_until(lambda: num_ended(gateway, Outcome.DISCONNECTED) == 1)
