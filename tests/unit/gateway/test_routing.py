"""Where requests go, over real sockets: sessions, workers that fail, what operators see of it."""

import re
from collections.abc import Callable

import pytest

from lineclear.gateway.errors import OverloadedError
from lineclear.gateway.tokenization import Tokenization
from lineclear.protocol import wire
from tests.unit.gateway.conftest import RunningGateway
from tests.unit.gateway.scripted_worker import ScriptedWorker

StartGateway = Callable[..., RunningGateway]
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}]}


def script(tokenization: Tokenization, text: str, **ending: object) -> Callable[..., list[wire.SequenceOutput]]:
    """One output with the text and the ending."""
    fields = {"token_ids": tokenization.encode_text(text), "finish_reason": "stop"} | ending

    def answer(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        return [wire.SequenceOutput(sequence_id=submitted.sequence_id, **fields)]

    return answer


def start_two(start: StartGateway, tokenization: Tokenization, **options: object) -> RunningGateway:
    gateway = start(**options)
    for name in ("a", "b"):
        gateway.start_worker(worker_id=name, script=script(tokenization, name))
    return gateway


def ask(gateway: RunningGateway, **headers: str) -> str:
    """The answer, which is the name of the worker that gave it."""
    answer = gateway.client.post(CHAT, json=BODY, headers=headers)
    return answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else str(answer.status_code)


def metric(gateway: RunningGateway, name: str, **labels: str) -> float:
    """One metric's value; 0 if it is not there."""
    for line in gateway.client.get("/metrics").text.splitlines():
        found = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        if found and dict(re.findall(r'(\w+)="([^"]*)"', found[1])) == labels:
            return float(found[2])
    return 0.0


def test_a_session_stays_on_its_worker(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_two(start_gateway, tokenization)
    sessions = {key: ask(gateway, **{"x-session-id": key}) for key in "abcdef"}
    for key, worker in sessions.items():
        assert {ask(gateway, **{"x-session-id": key}) for _ in range(3)} == {worker}
    in_sessions = sum(metric(gateway, "lineclear_routing_placed_total", worker=name, why="session") for name in "ab")
    assert in_sessions == 18


def test_turns_go_round_where_that_is_asked_for(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_two(start_gateway, tokenization, routing="round_robin")
    assert [ask(gateway) for _ in range(4)] == ["a", "b", "a", "b"]


def test_a_worker_that_fails_is_given_nothing_more(
    start_gateway: StartGateway, tokenization: Tokenization, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = start_gateway(routing="round_robin", breaker_seconds=3600)
    gateway.start_worker(worker_id="a", script=script(tokenization, "", finish_reason="error", error="memory"))
    gateway.start_worker(worker_id="b", script=script(tokenization, "b"))
    assert [ask(gateway) for _ in range(12)] == ["500", "b", "500", "b", "500", *["b"] * 7]
    assert metric(gateway, "lineclear_breaker_state", worker="a", state="open") == 1
    assert metric(gateway, "lineclear_breaker_state", worker="b", state="closed") == 1
    assert metric(gateway, "lineclear_breaker_changes_total", worker="a", state="open") == 1
    assert "breaker worker=a from=closed to=open reason=error" in caplog.messages


def test_the_only_worker_is_asked_whatever_it_did(start_gateway: StartGateway, tokenization: Tokenization) -> None:
    gateway = start_gateway(breaker_seconds=3600)
    worker = gateway.start_worker(script=script(tokenization, "", finish_reason="error", error="memory"))
    assert [ask(gateway) for _ in range(5)] == ["500"] * 5
    worker.script = script(tokenization, "well again")
    assert ask(gateway) == "well again"
    assert metric(gateway, "lineclear_routing_placed_total", worker="worker-0", why="forced") == 3


def test_a_full_server_says_when_to_ask_again(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_waiting=0)
    worker: ScriptedWorker = gateway.start_worker()
    with gateway.client.stream("POST", CHAT, json=BODY | {"stream": True, "n": 4}):
        for _ in range(4):
            worker.next_submitted()
        answer = gateway.client.post(CHAT, json=BODY)
    assert answer.status_code == OverloadedError.status
    assert 1 <= int(answer.headers["retry-after"]) <= 60
