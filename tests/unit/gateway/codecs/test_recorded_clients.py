"""Bodies that coding agents really sent, through the codecs, the template and the tokenizer.

The recordings keep the structure and the sizes of what was sent; the prose is filler. They lie outside the repository:
without `LINECLEAR_DATA` these tests are skipped.
"""

import itertools
import json
import os
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lineclear.base.ids import RequestId
from lineclear.bundled import checkpoint_path
from lineclear.gateway.codecs.chat import ChatCodec
from lineclear.gateway.codecs.messages import MessagesCodec, count_tokens
from lineclear.gateway.codecs.responses import ResponsesCodec
from lineclear.gateway.errors import InvalidRequestError
from lineclear.gateway.generation import ApiCall, CallContext, Codec
from lineclear.gateway.served_model import load_text_assets, serve_model
from tests.unit.gateway.scripted_worker import model_facts

ARCHIVE = Path(os.environ.get("LINECLEAR_DATA", "")) / "clients" / "recorded_shape.tar.xz"
CODECS: dict[str, Codec] = {
    "/v1/chat/completions": ChatCodec(),
    "/v1/messages": MessagesCodec(),
    "/v1/responses": ResponsesCodec(),
}
NUM_LATER_TURNS = {
    "aider": 0, "cc": 3, "cc2": 16, "cline": 1, "codex": 3, "codexgpt": 1, "codeximg": 0, "mini": 2, "ocanth": 1,
    "ocresp": 1, "opencode": 4, "opencodeimg": 0, "pi": 4, "qwen": 4,
}  # fmt: skip
"""The clients, and how many of their recorded requests go on with an earlier one of the same file."""

pytestmark = pytest.mark.skipif(not ARCHIVE.is_file(), reason="no recordings: LINECLEAR_DATA is not set")


@cache
def recorded(client: str) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Path and body of each request of a client, by scenario; repeated ones are left out of the recordings."""
    scenarios: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            parts = Path(member.name).parts
            file = archive.extractfile(member)
            if file is not None and parts[-2] == client:
                requests = [(each["path"].partition("?")[0], each["body"]) for each in json.load(file)]
                scenarios[parts[-1]] = [(path, body) for path, body in requests if is_whole(body)]
    return scenarios


def is_whole(body: Any) -> bool:
    return isinstance(body, dict) and ("messages" in body or "input" in body)


@pytest.fixture(scope="module")
def context() -> CallContext:
    facts = model_facts(vocab_size=2048, max_model_len=131_072, num_blocks=16_384)
    model = serve_model("glm-5", load_text_assets(checkpoint_path()), facts)
    return CallContext(request_id=RequestId("r"), created=0, model=model)


def prepare(path: str, body: dict[str, Any], context: CallContext) -> ApiCall:
    return CODECS[path].prepare(json.dumps(body | {"model": "glm-5"}).encode(), context)


def prompt_of(call: ApiCall) -> list[int]:
    return call.request.choices[0].prompt_token_ids


def session_of(body: dict[str, Any]) -> str:
    """What the turns of one session have in common: a side request and a subagent have other tools or first words."""
    tools = [tool.get("name") or tool.get("type") for tool in body.get("tools") or () if not tool.get("defer_loading")]
    first = (body.get("messages") or body["input"])[0]
    return json.dumps([tools, without_cache_control(first)])


def without_cache_control(value: Any) -> Any:
    if isinstance(value, list):
        return [without_cache_control(item) for item in value]
    if isinstance(value, dict):
        return {name: without_cache_control(item) for name, item in value.items() if name != "cache_control"}
    return value


def sessions(requests: list[tuple[str, dict[str, Any]]]) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    by_session: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path, body in requests:
        if path in CODECS:
            by_session.setdefault(session_of(body), []).append((path, body))
    yield from by_session.values()


def num_messages(body: dict[str, Any]) -> int:
    return len(body.get("messages") or body["input"])


@pytest.mark.parametrize("client", NUM_LATER_TURNS)
def test_every_turn_is_understood_and_begins_with_the_turn_before_it(client: str, context: CallContext) -> None:
    """What makes the prefix cache work: the same messages are the same tokens, whatever moves around them.

    Only the last token of a prompt may differ in the next one: it opens the answer, with thinking or without.
    """
    num_later = 0
    for requests in recorded(client).values():
        for turns in sessions(requests):
            if client == "codeximg":
                continue
            prompts = [prompt_of(prepare(path, body, context)) for path, body in turns]
            assert all(len(prompt) > 100 for prompt in prompts)
            for idx, (earlier, later) in enumerate(itertools.pairwise(turns)):
                if num_messages(later[1]) > num_messages(earlier[1]):
                    assert prompts[idx + 1][: len(prompts[idx]) - 1] == prompts[idx][:-1]
                    num_later += 1
    assert num_later == NUM_LATER_TURNS[client]


def test_a_picture_of_the_user_is_refused_clearly(context: CallContext) -> None:
    [(path, body)] = recorded("codeximg")["text.json"]
    with pytest.raises(InvalidRequestError, match="this model reads no images") as raised:
        prepare(path, body, context)
    assert raised.value.param == "input[3].content[1].type"


def test_a_picture_that_a_tool_brought_does_not_end_the_session(context: CallContext) -> None:
    [_, (path, body)] = recorded("cc2")["readimg.json"]
    assert prompt_of(prepare(path, body, context))


def test_tools_are_all_shown_or_known_to_be_dropped(context: CallContext) -> None:
    for client, path in (("qwen", "/v1/chat/completions"), ("ocanth", "/v1/messages"), ("ocresp", "/v1/responses")):
        [*_, (sent_to, body)] = recorded(client)["tool.json"]
        assert sent_to == path
        call = prepare(path, body, context)
        assert len(call.request.answer_format.tools) == len(body["tools"])
    [*_, (path, body)] = recorded("codexgpt")["tool.json"]
    dropped = [tool["type"] for tool in body["tools"] if tool["type"] in {"web_search", "tool_search"}]
    call = prepare(path, body, context)
    assert len(call.request.answer_format.tools) == len(body["tools"]) - len(dropped)


def test_tools_that_were_loaded_later_do_not_change_the_beginning(context: CallContext) -> None:
    first, second = recorded("cc2")["toolsearch.json"]
    names = [{tool.name for tool in prepare(*turn, context).request.answer_format.tools} for turn in (first, second)]
    assert names[1] - names[0] == {"WebFetch", "NotebookEdit"}


def test_counts_are_those_of_the_prompts(context: CallContext) -> None:
    counts = [
        count_tokens(json.dumps(body | {"model": "glm-5"}).encode(), context.model)
        for path, body in recorded("cc2")["context.json"]
        if path.endswith("/count_tokens")
    ]
    assert len(counts) == 13
    path, body = recorded("cc2")["text.json"][0]
    counted = count_tokens(json.dumps(body | {"model": "glm-5"}).encode(), context.model)
    assert counted == len(prompt_of(prepare(path, body, context)))
