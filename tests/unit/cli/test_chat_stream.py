import json

import pytest

from lineclear.base.errors import PeerError
from lineclear.cli.chat_stream import (
    Ending,
    Figures,
    ServerFailure,
    Text,
    Thinking,
    ToolCall,
    chat_body,
    read_events,
)
from lineclear.cli.client import read_error


def lines(*chunks: object) -> list[str]:
    return [line for chunk in chunks for line in (f"data: {json.dumps(chunk)}", "")]


def delta(**content: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": None}]}


USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}


def test_an_answer_is_read_in_order() -> None:
    stream = [
        ": a comment",
        *lines(
            delta(role="assistant", content=""),
            delta(reasoning_content="hm"),
            delta(content="Hel"),
            delta(content="lo"),
            delta(tool_calls=[{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None},
            {
                "choices": [],
                "usage": USAGE,
                "lineclear": {"draft_figures": [{"index": 0, "num_verifies": 2, "accept_length": 2.5}]},
            },
        ),
        "data: [DONE]",
        "data: nonsense after the end",
    ]
    assert list(read_events(stream)) == [
        Thinking("hm"),
        Text("Hel"),
        Text("lo"),
        ToolCall("f"),
        ToolCall("{}"),
        Ending("stop"),
        Figures(9, 8, 4, 2.5),
    ]


@pytest.mark.parametrize(
    "extra",
    [{}, {"lineclear": None}, {"lineclear": {"draft_figures": [{"num_verifies": 0, "accept_length": 0.0}]}}],
)
def test_servers_that_draft_nothing_have_no_accept_length(extra: dict[str, object]) -> None:
    (figures,) = read_events(lines({"choices": [], "usage": USAGE, **extra}))
    assert figures == Figures(9, 8, 4, None)


def test_other_servers_without_details_are_read() -> None:
    (figures,) = read_events(lines({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}))
    assert figures == Figures(1, 0, 2, None)


@pytest.mark.parametrize("prefix", ["data: ", ": error "])
def test_a_failure_in_the_middle_is_the_last_event(prefix: str) -> None:
    error = prefix + json.dumps({"error": {"message": "the worker was lost"}})
    events = list(read_events([*lines(delta(content="a")), error, "", *lines(delta(content="never read"))]))
    assert events == [Text("a"), ServerFailure("the worker was lost")]


@pytest.mark.parametrize("data", ["{", "[]", "{}", '{"choices": [1]}', '{"choices": [{}]}'])
def test_nonsense_is_a_peer_error(data: str) -> None:
    with pytest.raises(PeerError, match="no chat completion chunks"):
        list(read_events([f"data: {data}"]))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b"<html>", "the server answers with status 502"),
        (b"[]", "the server answers with status 502"),
    ],
)
def test_the_reason_of_a_refusal(body: bytes, message: str) -> None:
    assert read_error(body, 502) == message


def test_the_request_asks_for_figures() -> None:
    body = chat_body("m", [{"role": "user", "content": "x"}], {"temperature": 0.5})
    assert body["stream_options"] == {"include_usage": True}
    assert body["lineclear"] == {"draft_figures": True}
    assert (body["stream"], body["temperature"]) == (True, 0.5)
