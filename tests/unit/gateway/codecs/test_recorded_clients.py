"""Bodies that coding agents really sent, through the parser, the template and the tokenizer.

The recordings keep the structure and the sizes of what was sent; the prose is filler. They lie outside the repository:
without `LINECLEAR_DATA` these tests are skipped.
"""

import itertools
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lineclear.base.ids import RequestId
from lineclear.bundled import checkpoint_path
from lineclear.gateway.codecs.chat import ChatCodec
from lineclear.gateway.generation import ApiCall, CallContext
from lineclear.gateway.served_model import load_text_assets, serve_model
from tests.unit.gateway.scripted_worker import model_facts

ARCHIVE = Path(os.environ.get("LINECLEAR_DATA", "")) / "clients" / "recorded_shape.tar.xz"
CHAT_CLIENTS = ("aider", "cline", "mini", "opencode", "opencodeimg", "pi", "qwen")

pytestmark = pytest.mark.skipif(not ARCHIVE.is_file(), reason="no recordings: LINECLEAR_DATA is not set")


def recorded(client: str) -> dict[str, list[dict[str, Any]]]:
    """The chat bodies of a client, by scenario."""
    scenarios: dict[str, list[dict[str, Any]]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            parts = Path(member.name).parts
            file = archive.extractfile(member)
            if file is not None and client in parts[:-1]:
                requests = json.load(file)
                bodies = [each["body"] for each in requests if each["path"] == "/v1/chat/completions"]
                scenarios[parts[-1]] = [body for body in bodies if "messages" in body]  # repeated ones are left out
    return scenarios


@pytest.fixture(scope="module")
def context() -> CallContext:
    facts = model_facts(vocab_size=2048, max_model_len=131_072, num_blocks=16_384)
    model = serve_model("glm-5", load_text_assets(checkpoint_path()), facts)
    return CallContext(request_id=RequestId("r"), created=0, model=model)


def prepare(body: dict[str, Any], context: CallContext) -> ApiCall:
    return ChatCodec().prepare(json.dumps(body | {"model": "glm-5"}).encode(), context)


@pytest.mark.parametrize("client", CHAT_CLIENTS)
def test_every_body_is_understood(client: str, context: CallContext) -> None:
    scenarios = recorded(client)
    assert any(scenarios.values())
    for bodies in scenarios.values():
        for body in bodies:
            call = prepare(body, context)
            assert call.is_stream == bool(body.get("stream"))
            assert len(call.request.answer_format.tools) == len(body.get("tools") or [])
            assert len(call.request.choices[0].prompt_token_ids) > 100


@pytest.mark.parametrize(("client", "scenario"), [("opencode", "think.json"), ("qwen", "think.json"), ("mini", "")])
def test_a_turn_begins_with_the_turn_before_it(client: str, scenario: str, context: CallContext) -> None:
    """What makes the prefix cache work: rendering the same messages again gives the same tokens."""
    num_shared = 0
    for name, bodies in recorded(client).items():
        if scenario not in name:
            continue
        prompts = [prepare(body, context).request.choices[0].prompt_token_ids for body in bodies]
        for idx, (body, later) in enumerate(itertools.pairwise(bodies)):
            if later["messages"][: len(body["messages"])] != body["messages"]:
                continue
            without_opening = prompts[idx][:-2]  # the tokens that ask for an answer
            assert prompts[idx + 1][: len(without_opening)] == without_opening
            num_shared += 1
    assert num_shared > 0
