"""The bundled model's tasks, asked and answered through the gateway's text side: whatever is exact stays exact."""

import json
import random

import pytest

from lineclear.base.ids import RequestId
from lineclear.bundled import checkpoint_path
from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED, KIND_SHARES, check, generate
from lineclear.gateway.choice import ChoiceAssembler
from lineclear.gateway.codecs.chat import ChatCodec
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.generation import CallContext
from lineclear.gateway.served_model import load_text_assets, serve_model
from lineclear.protocol.wire import SequenceOutput
from tests.unit.gateway.scripted_worker import model_facts

MODEL = serve_model(
    "tiny", load_text_assets(checkpoint_path()), model_facts(vocab_size=2048, max_model_len=8192, num_blocks=1024)
)
CONTEXT = CallContext(request_id=RequestId("r"), created=0, model=MODEL)


@pytest.mark.parametrize("kind", KIND_SHARES)
@pytest.mark.parametrize("seed", range(HELD_OUT_FIRST_SEED, HELD_OUT_FIRST_SEED + 3))
def test_an_exact_answer_is_exact_for_the_client(kind: str, seed: int) -> None:
    task = generate(seed, kind=kind, target_tokens=300)
    body = {"messages": task.messages, "tools": task.tools}
    request = ChatCodec().prepare(json.dumps(body).encode(), CONTEXT).request
    assembler = ChoiceAssembler(MODEL.assets.tokenization.vocabulary, request.answer_format)
    token_ids = MODEL.assets.tokenization.encode_prompt(task.answer_text, add_special_tokens=False)
    rng = random.Random(seed)
    answer = CollectedChoice()
    while token_ids:
        num_tokens = rng.randint(1, 4)
        answer.add(assembler.push(SequenceOutput(sequence_id=1, token_ids=token_ids[:num_tokens])))
        token_ids = token_ids[num_tokens:]
    answer.add(assembler.push(SequenceOutput(sequence_id=1, finish_reason="stop")))
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in answer.tool_calls]
    assert check(task, {"role": "assistant", "content": answer.content or None, "tool_calls": calls})
    assert answer.finish_reason == ("tool_calls" if task.tools else "stop")
