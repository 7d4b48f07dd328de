import io
import json
from collections.abc import Callable, Iterator
from itertools import count

import httpx
import pytest
from rich.console import Console

from lineclear.base.errors import ConfigError, PeerError
from lineclear.cli import chat
from lineclear.cli.chat_stream import ChatEvent, Ending, Figures, ServerFailure, Text, Thinking
from lineclear.cli.main import main


def show(*events: ChatEvent | BaseException) -> tuple[str, str]:
    """Show events, raising those that are errors; returns the answer and what was printed."""

    def stream() -> Iterator[ChatEvent]:
        for event in events:
            if isinstance(event, BaseException):
                raise event
            yield event

    console = Console(file=io.StringIO(), width=200)
    ticks = count()
    answer = chat.Answer(console, lambda: float(next(ticks))).show(stream())
    return answer, console.file.getvalue()


def test_an_answer_and_its_figures() -> None:
    answer, printed = show(Thinking("hm "), Text("[b]Hi"), Text(" you"), Ending("stop"), Figures(9, 8, 5, 2.5))
    assert answer == "[b]Hi you"
    assert printed == (
        "hm [b]Hi you\n5 tokens · 4.0 tokens/s · first after 1.00 s · accept_length 2.50 · prompt 9, cached 8\n"
    )


def test_without_drafts_there_is_no_accept_length() -> None:
    assert "accept_length" not in show(Text("a"), Figures(9, 8, 5, None))[1]


def test_an_ending_other_than_stop_is_named() -> None:
    assert show(Text("a"), Ending("length"))[1] == "a (length)\n"


def test_an_interrupted_answer_is_kept() -> None:
    answer, printed = show(Text("half"), KeyboardInterrupt())
    assert answer == "half"
    assert "stopped" in printed


def test_a_failure_is_shown_on_its_own_line() -> None:
    assert show(Text("half"), ServerFailure("lost"))[1] == "half\nlost\n"
    assert show(ServerFailure("refused"))[1] == "refused\n"


def test_a_conversation_keeps_turns_and_can_be_forgotten() -> None:
    conversation = chat.Conversation("be kind")
    conversation.ask("a")
    conversation.answer("b")
    conversation.ask("unanswered")
    conversation.answer("")
    assert [message["content"] for message in conversation.messages] == ["be kind", "a", "b"]
    conversation.reset()
    assert [message["content"] for message in conversation.messages] == ["be kind"]


def respond(request: httpx.Request) -> httpx.Response:
    if request.url.path == "/v1/models":
        return httpx.Response(200, json={"data": [{"id": "tiny"}]})
    said = json.loads(request.content)["messages"]
    chunks = [{"choices": [{"delta": {"content": f"{len(said)} messages"}, "finish_reason": "stop"}]}]
    return httpx.Response(200, text="".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks))


@pytest.fixture
def run_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(
        *typed: str, answer: Callable[[httpx.Request], httpx.Response] = respond, arguments: tuple[str, ...] = ()
    ) -> str:
        real_client = httpx.Client
        monkeypatch.setattr(
            "httpx.Client", lambda **options: real_client(transport=httpx.MockTransport(answer), **options)
        )
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in typed)))
        assert main(["chat", *arguments]) == 0
        return capsys.readouterr().out

    return run


def test_a_session(run_chat: Callable[..., str]) -> None:
    printed = run_chat("hello", "", "again", "/reset", "fresh", "/exit", "never read")
    assert [word for word in ("1 messages", "3 messages", "forgotten") if word in printed] == [
        "1 messages",
        "3 messages",
        "forgotten",
    ]
    assert printed.count("1 messages") == 2


def test_the_end_of_the_input_leaves(run_chat: Callable[..., str]) -> None:
    assert "tiny" in run_chat()


def test_options_and_key_are_sent(run_chat: Callable[..., str]) -> None:
    requests: list[httpx.Request] = []

    def record(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return respond(request)

    run_chat("hi", answer=record, arguments=("--api-key", "k", "--temperature", "0.5", "--system", "s"))
    assert {request.headers["authorization"] for request in requests} == {"Bearer k"}
    body = json.loads(requests[-1].content)
    assert body["temperature"] == 0.5
    assert "max_tokens" not in body
    assert body["messages"][0] == {"role": "system", "content": "s"}


@pytest.mark.parametrize("url", ["http://server", "http://server/", "http://server/v1", "http://server/v1/"])
def test_the_address_may_end_as_that_of_openais_clients(run_chat: Callable[..., str], url: str) -> None:
    paths: list[str] = []

    def record(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return respond(request)

    assert "1 messages" in run_chat("hi", answer=record, arguments=("--url", url))
    assert paths == ["/v1/models", "/v1/chat/completions"]


@pytest.mark.parametrize("url", ["localhost:8000", "127.0.0.1:8000/v1", "http://server:99999", "ftp://server"])
def test_an_address_that_is_none_is_the_users_mistake(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", url]) == 2
    assert capsys.readouterr().err.startswith(f"lineclear: error: url: got '{url}', allowed: http://HOST:PORT")


@pytest.mark.parametrize("key", ["schlüssel", "two words", "line\nbreak"])
def test_a_key_that_no_server_has_is_the_users_mistake(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["chat", "--api-key", key]) == 2
    monkeypatch.setenv("LINECLEAR_API_KEY", key)
    assert main(["chat"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("api_key: got '(hidden)'") == 2
    assert key not in errors


def test_bytes_that_are_no_characters_are_replaced(run_chat: Callable[..., str]) -> None:
    said: list[dict[str, str]] = []

    def record(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            said.extend(json.loads(request.content)["messages"])
        return respond(request)

    run_chat("a\udcff b", answer=record, arguments=("--system", "c\udcff"))
    assert [message["content"] for message in said] == ["c\ufffd", "a\ufffd b"]


def test_a_refused_question_is_taken_back(run_chat: Callable[..., str]) -> None:
    answers = iter([httpx.Response(429, json={"error": {"message": "the server is full"}})])

    def refuse_once(request: httpx.Request) -> httpx.Response:
        return respond(request) if request.method == "GET" else next(answers, None) or respond(request)

    printed = run_chat("hi", "hi", answer=refuse_once)
    assert "the server is full" in printed
    assert "1 messages" in printed


def client(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    return httpx.Client(base_url="http://server", transport=httpx.MockTransport(answer))


def test_no_server_is_the_users_mistake() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with client(refuse) as nobody, pytest.raises(ConfigError, match="lineclear serve"):
        chat._find_model(nobody)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(401, json={"error": {"message": "wrong key"}}), "wrong key"),
        (httpx.Response(200, json={"data": []}), "does not say"),
        (httpx.Response(200, text="<html>"), "does not say"),
    ],
)
def test_other_servers_are_reported(response: httpx.Response, message: str) -> None:
    with client(lambda _: response) as server, pytest.raises(PeerError, match=message):
        chat._find_model(server)
