"""Broken answers over real sockets: begun again elsewhere, held back, resumed, given up, marked, told to operators."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from lineclear.gateway.detokenize import detokenize
from lineclear.gateway.ledger import Outcome
from lineclear.gateway.tokenization import Tokenization
from lineclear.protocol import wire
from lineclear.protocol.verdicts import Verdict
from tests.unit.gateway.conftest import RunningGateway
from tests.unit.gateway.scripted_worker import ScriptedWorker
from tests.unit.gateway.test_serving import CHAT, MESSAGES, events_of, stream_text

StartGateway = Callable[..., RunningGateway]
Script = Callable[[wire.SubmitSequence], list[wire.SequenceOutput]]
ANSWER = "one two three four five"
GARBAGE = "zzzzzzzz"


def verdict(action: str = "retry", **changes: Any) -> Verdict:
    fields = {"kind": "collapse", "detector": "seed", "action": action, "num_tokens": 9, "evidence": {"level": 4.5}}
    return Verdict(**(fields | {"num_quarantined_blocks": 2} | changes))


class Scripts:
    """What workers say to prompts, so that a resumed answer is the rest of the answer."""

    def __init__(self, tokenization: Tokenization) -> None:
        self._tokenization = tokenization
        self.answer = tokenization.encode_text(ANSWER)
        self.garbage = tokenization.encode_text(GARBAGE)

    def right(self, submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        """The answer, or its rest behind what the prompt has of it."""
        return [*self._steps(submitted, self._rest(submitted)), self._end(submitted, finish_reason="stop")]

    def broken_after(self, num_right: int, **changes: Any) -> Script:
        """So many tokens of the answer, then garbage, then a verdict."""

        def script(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
            steps = self._steps(submitted, [*self._rest(submitted)[:num_right], *self.garbage])
            if not submitted.guard:
                said = self._end(submitted, verdict=verdict("observe", **changes), finish_reason="stop")
            else:
                said = self._end(submitted, verdict=verdict(**changes), finish_reason="broken")
            return [*steps, said]

        return script

    def observed(self, submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        """The answer, with a verdict on the way after which it goes on."""
        first, *rest = self.right(submitted)
        said = wire.SequenceOutput(sequence_id=submitted.sequence_id, verdict=verdict("observe", kind="loop"))
        return [first, said, *rest]

    def text(self, num_tokens: int) -> str:
        """The text of so many tokens of the answer."""
        return detokenize(self._tokenization.vocabulary, self.answer[:num_tokens])

    def _rest(self, submitted: wire.SubmitSequence) -> list[int]:
        prompt = submitted.prompt_token_ids
        num_there = next(n for n in range(len(self.answer), -1, -1) if prompt[len(prompt) - n :] == self.answer[:n])
        return self.answer[num_there:]

    @staticmethod
    def _steps(submitted: wire.SubmitSequence, token_ids: list[int]) -> list[wire.SequenceOutput]:
        return [wire.SequenceOutput(sequence_id=submitted.sequence_id, token_ids=[each]) for each in token_ids]

    @staticmethod
    def _end(submitted: wire.SubmitSequence, **fields: Any) -> wire.SequenceOutput:
        return wire.SequenceOutput(sequence_id=submitted.sequence_id, **fields)


@pytest.fixture
def scripts(tokenization: Tokenization) -> Scripts:
    return Scripts(tokenization)


def ask(gateway: RunningGateway, path: str = CHAT, **fields: Any) -> httpx.Response:
    return gateway.client.post(path, json={"messages": MESSAGES} | fields)


def stream(gateway: RunningGateway, path: str = CHAT, **fields: Any) -> tuple[str, bool]:
    """What a stream said, and whether it ended as a whole one."""
    data = b""
    try:
        body = {"messages": MESSAGES, "stream": True} | fields
        with gateway.client.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            for chunk in response.iter_raw():
                data += chunk
    except httpx.RemoteProtocolError:
        return data.decode(), False
    return data.decode(), True


def chat_text(said: str) -> str:
    lines = [line.removeprefix("data: ") for line in said.splitlines() if line.startswith("data: {")]
    return stream_text([json.loads(line) for line in lines])


def recent(gateway: RunningGateway) -> list[dict[str, Any]]:
    return gateway.client.get("/guard/recent").json()["verdicts"]


def metric(gateway: RunningGateway, name: str) -> float:
    lines = [line for line in gateway.client.get("/metrics").text.splitlines() if line.startswith(f"lineclear_{name} ")]
    return float(lines[0].split()[-1]) if lines else 0.0


def start_pair(gateway: RunningGateway, first: Script, second: Script) -> tuple[ScriptedWorker, ScriptedWorker]:
    return gateway.start_worker(worker_id="a", script=first), gateway.start_worker(worker_id="b", script=second)


def test_a_broken_answer_is_begun_again_elsewhere_without_caches(start_gateway: StartGateway, scripts: Scripts) -> None:
    gateway = start_gateway()
    bad, good = start_pair(gateway, scripts.broken_after(2), scripts.right)
    answer = ask(gateway, prompt_cache_key="s").json()
    first, second = bad.next_submitted(), good.next_submitted()
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert (first.use_cache, first.guard) == (True, True)
    assert (second.use_cache, second.guard) == (False, True)
    assert second.prompt_token_ids == first.prompt_token_ids
    assert second.sampling == first.sampling
    assert "lineclear" not in answer
    [told] = recent(gateway)
    assert told["evidence"] == {"level": 4.5}
    assert (told["worker"], told["follows"], told["outcome"], told["attempt"]) == ("a", "again", "recovered", 1)
    assert metric(gateway, 'guard_verdicts_total{action="retry",kind="collapse",worker="a"}') == 1
    assert metric(gateway, 'guard_retries_total{kind="collapse"}') == 1
    assert metric(gateway, 'guard_outcomes_total{kind="collapse",outcome="recovered"}') == 1
    assert ANSWER not in gateway.client.get("/guard/recent").text


def test_what_is_broken_everywhere_is_returned_marked_and_counted_apart(
    start_gateway: StartGateway, scripts: Scripts
) -> None:
    gateway = start_gateway()
    a, b = start_pair(gateway, scripts.broken_after(1), scripts.broken_after(1))
    response = ask(gateway)
    attempts = sorted(
        (worker.submitted.get() for worker in (a, b) for _ in range(worker.submitted.qsize())),
        key=lambda each: each.sequence_id,
    )
    assert [each.guard for each in attempts] == [True, True, False]
    assert response.headers["x-lineclear-guard"] == "model_own"
    [mark] = response.json()["lineclear"]["guard"]
    assert mark == {
        "index": 0,
        "judged": "model_own",
        "kind": "collapse",
        "detector": "seed",
        "num_tokens": 9,
        "num_attempts": 3,
    }
    assert response.json()["choices"][0]["message"]["content"].endswith(GARBAGE)
    assert [each["outcome"] for each in recent(gateway)] == ["model_own"] * 3
    assert metric(gateway, 'guard_outcomes_total{kind="collapse",outcome="model_own"}') == 1


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/v1/completions"])
@pytest.mark.parametrize("is_stream", [False, True])
def test_each_api_shows_the_mark_and_never_a_clean_end_for_what_failed(
    start_gateway: StartGateway, scripts: Scripts, path: str, is_stream: bool
) -> None:
    gateway = start_gateway()
    gateway.start_worker(script=scripts.observed)
    fields: dict[str, Any] = {"max_tokens": 40} if path != "/v1/responses" else {"input": "hello"}
    fields |= {"prompt": "hello"} if path == "/v1/completions" else {}
    if path in {"/v1/responses", "/v1/completions"}:
        fields["messages"] = None
    said = stream(gateway, path, **fields) if is_stream else (ask(gateway, path, **fields).text, True)
    assert '"judged":"observed"' in said[0].replace(" ", "")
    assert said[1]
    gateway.workers[0].script = scripts.broken_after(1, action="fail")
    if is_stream:
        text, _ = stream(gateway, path, **fields)
        for clean_end in ("[DONE]", "message_stop", "response.completed"):
            assert clean_end not in text
    else:
        response = ask(gateway, path, **fields)
        assert response.status_code == 500
        assert "the answer went wrong (collapse)" in response.text
    gateway.wait_until(lambda: gateway.gateway.ledger.statistics().num_ended[Outcome.FAILED] == 1)


def test_holdback_makes_a_retry_invisible(start_gateway: StartGateway, scripts: Scripts) -> None:
    gateway = start_gateway(guard="retry", guard_holdback_tokens=200)
    start_pair(gateway, scripts.broken_after(3), scripts.right)
    said, is_whole = stream(gateway, prompt_cache_key="s")
    assert is_whole
    assert chat_text(said) == ANSWER
    [told] = recent(gateway)
    assert (told["num_sent_tokens"], told["outcome"]) == (0, "recovered")


@pytest.mark.parametrize("num_right", [0, 3, 9])
def test_resume_continues_behind_what_was_sent(start_gateway: StartGateway, scripts: Scripts, num_right: int) -> None:
    """Held back are as many tokens as it takes to notice, so that what was sent is right."""
    num_held = len(scripts.garbage)
    gateway = start_gateway(guard="retry", guard_holdback_tokens=num_held, guard_after_sent="resume")
    bad, good = start_pair(gateway, lambda _: [], scripts.right)
    with gateway.client.stream(
        "POST", CHAT, json={"messages": MESSAGES, "stream": True, "prompt_cache_key": "s", "max_tokens": 90}
    ) as response:
        first = bad.next_submitted()
        steps = scripts.broken_after(num_right)(first)
        for step in steps[:-1]:
            bad.send(step)
        parts = response.iter_text()
        said = ""
        while chat_text(said) != ANSWER[: len(scripts.text(num_right))]:
            said += next(parts)
        bad.send(steps[-1])
        before = chat_text(said)
        said += "".join(parts)
    second = good.next_submitted()
    sent = second.prompt_token_ids[len(first.prompt_token_ids) :]
    assert sent == scripts.answer[:num_right]
    assert second.sampling.max_tokens == first.sampling.max_tokens - num_right
    assert chat_text(said) == ANSWER
    assert chat_text(said).startswith(before)
    assert events_of(said)[-1]["choices"][0]["finish_reason"] == "stop"
    assert metric(gateway, "guard_resumed_total") == (num_right > 0)


def test_after_something_was_sent_the_default_is_an_error(start_gateway: StartGateway, scripts: Scripts) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker(script=lambda _: [])
    gateway.start_worker(worker_id="other", script=scripts.right)
    with gateway.client.stream("POST", CHAT, json={"messages": MESSAGES, "stream": True}) as response:
        submitted = worker.next_submitted()
        steps = scripts.broken_after(2)(submitted)
        worker.send(*steps[:2])
        parts = response.iter_text()
        said = ""
        while not chat_text(said):
            said += next(parts)
        worker.send(steps[-1])
        with pytest.raises(httpx.RemoteProtocolError):
            said += "".join(parts)
    assert "[DONE]" not in said
    [told] = recent(gateway)
    assert (told["follows"], told["outcome"]) == ("sent", "failed")
    assert metric(gateway, 'guard_given_up_total{limit="sent"}') == 1


def test_only_the_broken_choice_is_begun_again(start_gateway: StartGateway, scripts: Scripts) -> None:
    gateway = start_gateway()
    seen: list[int] = []

    def second_is_broken(submitted: wire.SubmitSequence) -> list[wire.SequenceOutput]:
        seen.append(submitted.sequence_id)
        return (scripts.broken_after(2) if len(seen) == 2 else scripts.right)(submitted)

    bad, good = start_pair(gateway, second_is_broken, scripts.right)
    answer = ask(gateway, n=3, prompt_cache_key="s").json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == [ANSWER] * 3
    assert (bad.submitted.qsize(), good.submitted.qsize()) == (3, 1)
    assert recent(gateway)[0]["choice"] == 1


def test_the_fleet_has_no_more_retries_than_its_share(start_gateway: StartGateway, scripts: Scripts) -> None:
    gateway = start_gateway(retry_burst=1, retry_share=0.0)
    gateway.start_worker(script=scripts.broken_after(1))
    assert "were tried again lately" in ask(gateway).text
    assert [each["follows"] for each in recent(gateway)] == ["fleet", "again"]


def test_a_worker_that_breaks_everything_is_left_alone_and_the_others_serve(
    start_gateway: StartGateway, scripts: Scripts
) -> None:
    gateway = start_gateway(retry_burst=100, breaker_seconds=3600.0)
    bad, _ = start_pair(gateway, scripts.broken_after(4), scripts.right)
    gateway.start_worker(worker_id="c", script=scripts.right)
    answers = [ask(gateway, prompt_cache_key=f"s{idx}").json() for idx in range(40)]
    assert {answer["choices"][0]["message"]["content"] for answer in answers} == {ANSWER}
    num_before = bad.submitted.qsize()
    assert 3 <= num_before < 10
    assert metric(gateway, 'breaker_state{state="open",worker="a"}') == 1
    assert metric(gateway, 'guard_outcomes_total{kind="collapse",outcome="recovered"}') == num_before
    assert gateway.gateway.ledger.statistics().num_ended[Outcome.COMPLETED] == 40


def test_a_client_that_leaves_while_its_answer_is_begun_again(start_gateway: StartGateway, scripts: Scripts) -> None:
    gateway = start_gateway(guard="retry", guard_holdback_tokens=200)
    bad, other = start_pair(gateway, scripts.broken_after(1), lambda _: [])
    with gateway.client.stream("POST", CHAT, json={"messages": MESSAGES, "stream": True, "prompt_cache_key": "s"}):
        other.next_submitted()
    gateway.wait_until(lambda: gateway.gateway.ledger.statistics().num_ended[Outcome.DISCONNECTED] == 1)
    other.next_cancelled()
    assert [each["outcome"] for each in recent(gateway)] == ["unfinished"]
    assert bad.submitted.qsize() == 1
