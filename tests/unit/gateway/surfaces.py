"""The three APIs for agents side by side: the same request in the words of each, and what each says, in one shape."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lineclear.base.ids import RequestId
from lineclear.gateway.choice import ChoiceAssembler
from lineclear.gateway.codecs.chat import ChatCodec
from lineclear.gateway.codecs.messages import MessagesCodec
from lineclear.gateway.codecs.responses import ResponsesCodec
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.generation import ApiCall, CallContext, Codec
from lineclear.gateway.served_model import ServedModel
from lineclear.gateway.usage import Usage
from lineclear.protocol.wire import SequenceOutput
from tests.unit.gateway.anthropic_events import message_of
from tests.unit.gateway.openai_events import parse_chat, response_of, text_of

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """What an answer says: complete calls only, and the end in the words of the chat API."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    finish: str


@dataclass(frozen=True)
class Surface:
    """One API."""

    name: str
    path: str
    codec: Codec
    body: Callable[[str, list[JsonObject], bool], JsonObject]
    """From a text of the user, functions and whether to think."""
    read_stream: Callable[[str], Said]
    read_whole: Callable[[bytes], Said]
    read_error: Callable[[JsonObject], str]


def _chat_body(text: str, functions: list[JsonObject], thinks: bool) -> JsonObject:
    body: JsonObject = {"messages": [{"role": "user", "content": text}]}
    if functions:
        body["tools"] = [{"type": "function", "function": function} for function in functions]
    return body | ({"chat_template_kwargs": {"enable_thinking": True}} if thinks else {})


def _messages_body(text: str, functions: list[JsonObject], thinks: bool) -> JsonObject:
    tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in functions]
    body: JsonObject = {"max_tokens": 1000, "messages": [{"role": "user", "content": text}], "tools": tools}
    return body | ({"thinking": {"type": "adaptive"}} if thinks else {})


def _responses_body(text: str, functions: list[JsonObject], thinks: bool) -> JsonObject:
    tools = [{"type": "function"} | function for function in functions]
    body: JsonObject = {"input": text, "tools": tools}
    return body | ({"reasoning": {"effort": "high"}} if thinks else {})


def _read_chat_stream(text: str) -> Said:
    message: JsonObject = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = ""
    for chunk in parse_chat(text):
        [choice] = chunk["choices"]
        finish = choice["finish_reason"] or finish
        for name in ("content", "reasoning_content"):
            message[name] += choice["delta"].get(name) or ""
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                assert isinstance(call["function"]["name"], str)
                message["tool_calls"].append({"function": {"name": call["function"]["name"], "arguments": ""}})
            message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return _read_chat_message(message, finish)


def _read_chat_whole(data: bytes) -> Said:
    [choice] = json.loads(data)["choices"]
    return _read_chat_message(choice["message"], choice["finish_reason"])


def _read_chat_message(message: JsonObject, finish: str) -> Said:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    complete = tuple((call["name"], call["arguments"]) for call in calls if _is_json(call["arguments"]))
    return Said(message.get("reasoning_content") or "", message["content"] or "", complete, finish)


_FINISHES = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "stop_sequence": "stop"}


def _read_message(message: JsonObject) -> Said:
    blocks = message["content"]
    return Said(
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        tuple(
            (block["name"], json.dumps(block["input"], ensure_ascii=False))
            for block in blocks
            if block["type"] == "tool_use" and block["input"] is not None
        ),
        _FINISHES[message["stop_reason"]],
    )


def _read_response(response: JsonObject) -> Said:
    items = response["output"]
    calls = tuple((item["name"], item["arguments"]) for item in items if item["type"] == "function_call")
    half = [item for item in items if item["type"] == "function_call" and item["status"] == "incomplete"]
    assert all(not _is_json(item["arguments"]) for item in half)
    complete = tuple(call for call in calls if _is_json(call[1]))
    finish = "tool_calls" if calls and calls == complete else "stop"
    return Said(
        "".join(text_of(item) for item in items if item["type"] == "reasoning"),
        "".join(text_of(item) for item in items if item["type"] == "message"),
        complete,
        "length" if response["status"] == "incomplete" else finish,
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


CHAT = Surface(
    "chat",
    "/v1/chat/completions",
    ChatCodec(),
    _chat_body,
    _read_chat_stream,
    _read_chat_whole,
    lambda answer: answer["error"]["message"],
)
MESSAGES = Surface(
    "messages",
    "/v1/messages",
    MessagesCodec(),
    _messages_body,
    lambda text: _read_message(message_of(text, by_sdk=False)),
    lambda data: _read_message(json.loads(data)),
    lambda answer: answer["error"]["message"],
)
RESPONSES = Surface(
    "responses",
    "/v1/responses",
    ResponsesCodec(),
    _responses_body,
    lambda text: _read_response(response_of(text, by_sdk=False)),
    lambda data: _read_response(json.loads(data)),
    lambda answer: answer["error"]["message"],
)
SURFACES = (CHAT, MESSAGES, RESPONSES)


def prepare(surface: Surface, body: JsonObject, model: ServedModel) -> ApiCall:
    """A request as its codec understands it."""
    context = CallContext(request_id=RequestId("r" * 32), created=0, model=model)
    return surface.codec.prepare(json.dumps(body).encode(), context)


def answer(call: ApiCall, model: ServedModel, outputs: Sequence[SequenceOutput]) -> tuple[str, bytes]:
    """What the API says of these outputs: as a stream, and in one piece."""
    assembler = ChoiceAssembler(model.assets.tokenization.vocabulary, call.request.answer_format)
    collected = CollectedChoice()
    stream = call.reply.begin()
    for output in outputs:
        delta = assembler.push(output)
        collected.add(delta)
        stream += call.reply.delta(0, delta)
    assert assembler.is_finished
    usage = Usage(
        num_prompt_tokens=len(call.request.choices[0].prompt_token_ids),
        num_cached_tokens=assembler.num_cached_tokens,
        num_completion_tokens=assembler.num_tokens,
        num_reasoning_tokens=assembler.num_reasoning_tokens,
    )
    stream += call.reply.end([collected], usage)
    return stream.decode(), call.reply.whole([collected], usage)
