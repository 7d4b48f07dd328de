"""One conversation is one prompt, whichever API it came through: a session may change its API and keep its cache."""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.gateway.surfaces import CHAT, MESSAGES, RESPONSES, JsonObject, Surface, prepare
from tests.unit.gateway.test_parser_faults import MODEL


@dataclass(frozen=True)
class Turn:
    """What the user says, what the assistant makes of it, and what its tools answer."""

    said: str
    reasoning: str
    content: str
    calls: tuple[tuple[JsonObject, str], ...]
    """Arguments and result of each."""


texts = st.text(alphabet='aé"<>|\\\n ', max_size=8) | st.sampled_from(
    ["<|user|>", "<think>", "</tool_call>", "[gMASK]"]
)
arguments = st.dictionaries(
    st.sampled_from(["city", "days", "<k>"]), texts | st.integers(-9, 9) | st.none(), max_size=2
)
turns = st.builds(
    Turn,
    said=texts,
    reasoning=texts,
    content=texts,
    calls=st.lists(st.tuples(arguments, texts), max_size=2).map(tuple),
)
functions = st.lists(
    st.builds(
        lambda name, description: {"name": name, "description": description, "parameters": {"type": "object"}},
        st.sampled_from(["f", "get_weather"]),
        texts,
    ),
    max_size=2,
)


def in_chat(system: str, tools: list[JsonObject], some: list[Turn], last: str) -> JsonObject:
    messages: list[JsonObject] = [{"role": "system", "content": system}] if system else []
    for number, turn in enumerate(some):
        calls = [
            {"id": f"{number}-{idx}", "type": "function", "function": {"name": "f", "arguments": json.dumps(sent)}}
            for idx, (sent, _) in enumerate(turn.calls)
        ]
        messages += [{"role": "user", "content": turn.said}]
        messages += [{"role": "assistant", "content": turn.content, "tool_calls": calls}]
        messages[-1] |= {"reasoning_content": turn.reasoning} if turn.reasoning else {}
        messages += [
            {"role": "tool", "tool_call_id": f"{number}-{idx}", "content": result}
            for idx, (_, result) in enumerate(turn.calls)
        ]
    messages.append({"role": "user", "content": last})
    return {"messages": messages, "tools": [{"type": "function", "function": tool} for tool in tools]}


def in_messages(system: str, tools: list[JsonObject], some: list[Turn], last: str) -> JsonObject:
    messages: list[JsonObject] = []
    results: list[JsonObject] = []
    for number, turn in enumerate(some):
        messages.append({"role": "user", "content": [*results, {"type": "text", "text": turn.said}]})
        thinking = [{"type": "thinking", "thinking": turn.reasoning, "signature": "x"}] if turn.reasoning else []
        text = [{"type": "text", "text": turn.content}] if turn.content else []
        calls = [
            {"type": "tool_use", "id": f"{number}-{idx}", "name": "f", "input": sent}
            for idx, (sent, _) in enumerate(turn.calls)
        ]
        messages.append({"role": "assistant", "content": [*thinking, *text, *calls]})
        results = [
            {"type": "tool_result", "tool_use_id": f"{number}-{idx}", "content": result}
            for idx, (_, result) in enumerate(turn.calls)
        ]
    messages.append({"role": "user", "content": [*results, {"type": "text", "text": last}]})
    declared = [{"name": t["name"], "description": t["description"], "input_schema": t["parameters"]} for t in tools]
    return {"system": system, "messages": messages, "tools": declared, "max_tokens": 9}


def in_responses(system: str, tools: list[JsonObject], some: list[Turn], last: str) -> JsonObject:
    items: list[JsonObject] = []
    for number, turn in enumerate(some):
        items.append({"role": "user", "content": turn.said})
        if turn.reasoning:
            items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": turn.reasoning}]})
        items.append({"role": "assistant", "content": [{"type": "output_text", "text": turn.content}]})
        items += [
            {"type": "function_call", "call_id": f"{number}-{idx}", "name": "f", "arguments": json.dumps(sent)}
            for idx, (sent, _) in enumerate(turn.calls)
        ]
        items += [
            {"type": "function_call_output", "call_id": f"{number}-{idx}", "output": result}
            for idx, (_, result) in enumerate(turn.calls)
        ]
    items.append({"role": "user", "content": last})
    return {"instructions": system, "input": items, "tools": [{"type": "function"} | tool for tool in tools]}


def prompt_of(surface: Surface, body: JsonObject) -> list[int]:
    return prepare(surface, body, MODEL).request.choices[0].prompt_token_ids


@given(system=texts, tools=functions, some=st.lists(turns, max_size=3), last=texts)
@example(system="", tools=[], some=[Turn("", "", "", ())], last="")
@example(system="s", tools=[], some=[Turn("a", "r", "", (({}, "x"), ({"city": "p"}, "y")))], last="b")
def test_one_conversation_is_one_prompt(system: str, tools: list[Any], some: list[Turn], last: str) -> None:
    first = prompt_of(CHAT, in_chat(system, tools, some, last))
    assert prompt_of(MESSAGES, in_messages(system, tools, some, last)) == first
    assert prompt_of(RESPONSES, in_responses(system, tools, some, last)) == first
