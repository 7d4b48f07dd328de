import json
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lineclear.bundled import checkpoint_path
from lineclear.bundled.edit_tasks import KIND_SHARES, generate

ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
ENVIRONMENT.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
TEMPLATE = ENVIRONMENT.from_string((checkpoint_path() / "chat_template.jinja").read_text())


def render(*messages: dict[str, Any], **options: Any) -> str:
    return TEMPLATE.render(messages=messages, **options)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_roles_and_generation_prompts() -> None:
    messages = ({"role": "system", "content": "S"}, user("U"))
    assert render(*messages) == "[gMASK]<sop><|system|>S<|user|>U"
    assert render(*messages, add_generation_prompt=True).endswith("U<|assistant|></think>")
    assert render(*messages, add_generation_prompt=True, enable_thinking=True).endswith("U<|assistant|><think>")
    assert render({"role": "developer", "content": "D"}) == "[gMASK]<sop><|system|>D"


def test_assistant_history_with_and_without_reasoning() -> None:
    answer = {"role": "assistant", "content": "A"}
    assert render(user("U"), answer).endswith("<|assistant|></think>A")
    assert render(user("U"), answer | {"reasoning_content": "R"}).endswith("<|assistant|><think>R</think>A")


@pytest.mark.parametrize(
    ("content", "shown"),
    [(None, ""), ("a\n", "a\n"), ([{"type": "text", "text": "a"}, {"type": "text", "text": " b"}], "a b"), ([], "")],
)
def test_contents(content: Any, shown: str) -> None:
    assert render({"role": "user", "content": content}) == f"[gMASK]<sop><|user|>{shown}"


def test_tools_are_listed_one_a_line() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("ä", "b")]
    text = render(user("U"), tools=tools)
    assert '<tools>\n{"type": "function", "function": {"name": "ä"}}\n{"type"' in text
    assert text.startswith("[gMASK]<sop><|system|># Tools\n")


@pytest.mark.parametrize("wrapped", [True, False])
def test_tool_calls_and_their_results(wrapped: bool) -> None:
    function = {"name": "f", "arguments": {"a": "x", "n": 3, "o": {"k": [1]}}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": function} if wrapped else function]}
    results = [{"role": "tool", "content": text} for text in ("1", "2")]
    assert render(user("U"), call, *results, user("V")) == (
        "[gMASK]<sop><|user|>U<|assistant|></think><tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value>"
        '<arg_key>n</arg_key><arg_value>3</arg_value><arg_key>o</arg_key><arg_value>{"k": [1]}</arg_value></tool_call>'
        "<|observation|><tool_response>1</tool_response><tool_response>2</tool_response><|user|>V"
    )


def test_arguments_that_are_text_are_shown_as_they_are() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}
    assert '<tool_call>f<arg_key>arguments</arg_key><arg_value>{"a": 1}</arg_value></tool_call>' in render(call)


@pytest.mark.parametrize("kind", sorted(KIND_SHARES))
def test_an_answer_rendered_as_history_is_the_text_the_model_writes(kind: str) -> None:
    task = generate(4, kind=kind, target_tokens=400)
    message = json.loads(json.dumps(task.answer_message))
    for call in message.get("tool_calls", []):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    prompt = render(*task.messages, tools=task.tools, add_generation_prompt=True)
    assert render(*task.messages, message, tools=task.tools) == prompt + task.answer_text
