"""Faults of public parsers for GLM's format, by the reports about them, through each API: none of them is here.

Each test names the report. One law covers most of them: however the tokens are cut into steps, the answer is the same.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.gateway.fragments import Marker
from lineclear.gateway.served_model import SamplingDefaults, ServedModel, TextAssets
from lineclear.gateway.template import ChatTemplate
from lineclear.gateway.tokenization import Tokenization
from lineclear.protocol.wire import SequenceOutput
from tests.unit.gateway.surfaces import CHAT, MESSAGES, RESPONSES, SURFACES, Said, Surface, answer, prepare
from tests.unit.gateway.test_choice import encode, spell_out
from tests.unit.gateway.tiny_text import TEMPLATE, build_tokenizer

TOKENIZATION = Tokenization(build_tokenizer())
MODEL = ServedModel(
    "tiny",
    TextAssets(TOKENIZATION, ChatTemplate(TEMPLATE, {}, TOKENIZATION.control_literals), SamplingDefaults()),
    600,
    4096,
)
RUN = {
    "name": "run",
    "parameters": {"properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}, "raw": {}}},
}
FUNCTIONS: list[dict[str, Any]] = [
    RUN,
    {"name": "run_in_terminal", "parameters": {"properties": {"command": {"type": "string"}}}},
    {"name": "list_files", "parameters": {}},
]
CALL = "<tool_call>run<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>"
LS = ("run", '{"command": "ls"}')

every_surface = pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)


def steps(token_ids: Sequence[int], borders: Sequence[int], finish_reason: str) -> list[SequenceOutput]:
    inner = sorted({0, *borders, len(token_ids)})
    pieces = [list(token_ids[start:end]) for start, end in itertools.pairwise(inner)] or [[]]
    return [
        SequenceOutput(sequence_id=1, token_ids=piece, finish_reason=finish_reason if idx == len(pieces) - 1 else None)
        for idx, piece in enumerate(pieces)
    ]


def both_ways(
    surface: Surface,
    token_ids: Sequence[int],
    borders: Sequence[int] = (),
    finish_reason: str = "stop",
    **options: Any,
) -> Said:
    """What an answer of these tokens says, which must be the same as a stream and in one piece."""
    body = surface.body("hello", options.pop("functions", FUNCTIONS), options.pop("thinks", False)) | options
    call = prepare(surface, body, MODEL)
    stream, whole = answer(call, MODEL, steps(token_ids, borders, finish_reason))
    said = surface.read_stream(stream)
    assert surface.read_whole(whole) == said
    return said


def all_ways(surface: Surface, text: str, finish_reason: str = "stop", **options: Any) -> Said:
    """The same for steps of one token, for one step, and for every cut into two."""
    token_ids = spell_out(text)
    ways = [range(len(token_ids)), [], *([border] for border in range(1, len(token_ids)))]
    first, *others = (both_ways(surface, token_ids, way, finish_reason, **options) for way in ways)
    assert all(other == first for other in others)
    return first


EVERYTHING = (
    "I think\U0001f99c <arg_key> so</think>Look:\n"
    f"{CALL}\n<tool_call>list_files</tool_call>"
    "<tool_call>run<arg_key>timeout</arg_key><arg_value>30</arg_value><arg_key>raw</arg_key>"
    '<arg_value>{"a": [1, "é"]}</arg_value><arg_key>command</arg_key><arg_value>say "\U0001f99c\\"</arg_value>'
    "</tool_call>"
    " and <tool_call>nobody<arg_key>x</arg_key></tool_call> then"
)


@every_surface
def test_any_cut_of_the_tokens_gives_the_same_answer(surface: Surface) -> None:
    """vllm #34449, PR #39253; vllm #39574 (a stream of the Responses API that ended after its first item)."""
    said = all_ways(surface, EVERYTHING, thinks=True)
    third = {"timeout": 30, "raw": {"a": [1, "é"]}, "command": 'say "\U0001f99c\\"'}
    assert said.reasoning == "I think\U0001f99c <arg_key> so"
    assert said.content == "Look:and <tool_call>nobody<arg_key>x</arg_key></tool_call> then"
    assert [(name, json.loads(arguments)) for name, arguments in said.calls] == [
        ("run", {"command": "ls"}),
        ("list_files", {}),
        ("run", third),
    ]
    assert said.finish == "tool_calls"


@every_surface
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_an_answer_that_ends_anywhere_is_the_same_both_ways(surface: Surface, finish_reason: str) -> None:
    """vllm #47903: whatever was cut off."""
    token_ids = spell_out(EVERYTHING)
    for end in range(len(token_ids)):
        said = both_ways(surface, token_ids[:end], range(end), finish_reason, thinks=True)
        assert (said.finish == "length") == (finish_reason == "length")


pieces = st.one_of(
    st.sampled_from([marker.value for marker in Marker]),
    st.sampled_from([CALL, "run", "run_in", "list_files", "command", "timeout", " ", "\n", '"', "12", "{", "é"]),
)


@every_surface
@given(
    text=st.lists(pieces, max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    finish_reason=st.sampled_from(["stop", "length"]),
    thinks=st.booleans(),
)
@example(
    text="<tool_call>run<arg_key>command</arg_key><arg_value>a<think>b</think>c",
    cuts=[],
    finish_reason="stop",
    thinks=False,
)
def test_any_mess_of_tags_is_the_same_however_it_is_cut(
    surface: Surface, text: str, cuts: list[int], finish_reason: str, thinks: bool
) -> None:
    token_ids = encode(text)
    borders = [cut % (len(token_ids) + 1) for cut in cuts]
    said = both_ways(surface, token_ids, borders, finish_reason, thinks=thinks)
    assert said == both_ways(surface, token_ids, (), finish_reason, thinks=thinks)
    for name, arguments in said.calls:
        assert name in {function["name"] for function in FUNCTIONS}
        assert isinstance(json.loads(arguments), dict)


@every_surface
def test_a_name_is_sent_once_and_whole(surface: Surface) -> None:
    """vllm #39757: `run_in` for `run_in_terminal`."""
    text = "<tool_call>run_in_terminal<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>"
    assert all_ways(surface, text).calls == (("run_in_terminal", '{"command": "ls"}'),)


@every_surface
@pytest.mark.parametrize("text", ["<tool_call>list_files</tool_call>", "<tool_call>\nlist_files\n</tool_call>\n"])
def test_a_call_without_arguments(surface: Surface, text: str) -> None:
    """vllm #44326, #32436, PR #32097."""
    assert all_ways(surface, text) == Said("", "", (("list_files", "{}"),), "tool_calls")


@every_surface
def test_a_call_ends_the_thinking_that_was_left_open(surface: Surface) -> None:
    """vllm #42400, #46040, PR #45915: stop reason tool_use, but no call."""
    assert all_ways(surface, f"I will.{CALL}", thinks=True) == Said("I will.", "", (LS,), "tool_calls")


@every_surface
def test_thinking_ends_inside_a_step(surface: Surface) -> None:
    """vllm PR #40659: the call's tags in the reasoning."""
    said = both_ways(surface, encode(f"hm</think>{CALL}"), thinks=True)
    assert said == Said("hm", "", (LS,), "tool_calls")


@every_surface
@pytest.mark.parametrize("text", ["if limit < limit < 2", f"see {CALL} there"])
def test_without_tools_nothing_is_looked_for(surface: Surface, text: str) -> None:
    """local-inference-lab/vllm PR #29: doubled text."""
    assert all_ways(surface, text, functions=[]) == Said("", text, (), "stop")


@every_surface
@pytest.mark.parametrize("num_cut", range(1, 14))
def test_a_call_that_is_cut_off_has_no_markup(surface: Surface, num_cut: int) -> None:
    """vllm #47903: finish reason, and tags in the content."""
    token_ids = encode(f"Look{CALL}")
    end = max(token_ids.index(TOKENIZATION.vocabulary.control_id("<arg_key>") or 0) + 1, len(token_ids) - num_cut)
    said = both_ways(surface, token_ids[:end], range(end), "length")
    assert said == Said("", "Look", (), "length")


@every_surface
@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ("<arg_value>30</arg_value></tool_call>", {"timeout": 30}),
        ("<arg_value>30</tool_call>", {"timeout": 30}),
        ("<arg_value>30</arg_value>", {"timeout": 30}),
        ("<arg_value>soon</arg_value></tool_call>", {"timeout": "soon"}),
        ("<arg_value> 30\n</arg_value></tool_call>", {"timeout": 30}),
    ],
)
def test_what_is_no_text_is_valid_json_at_its_end(surface: Surface, value: str, arguments: dict[str, Any]) -> None:
    """vllm #48702: arguments cut where a value is converted."""
    [(_, written)] = all_ways(surface, f"<tool_call>run<arg_key>timeout</arg_key>{value}").calls
    assert json.loads(written) == arguments


@every_surface
@pytest.mark.parametrize(("key", "value"), [("command", "123"), ("timeout", 123), ("raw", 123)])
def test_the_schema_decides_both_ways(surface: Surface, key: str, value: Any) -> None:
    """sglang #35564: 123 as "123" in a stream."""
    text = f"<tool_call>run<arg_key>{key}</arg_key><arg_value>123</arg_value></tool_call>"
    [(_, written)] = all_ways(surface, text).calls
    assert json.loads(written) == {key: value}


_PIECES = {
    CHAT: lambda stream: stream.count('"arguments":"a'),
    MESSAGES: lambda stream: stream.count('"partial_json":"a'),
    RESPONSES: lambda stream: stream.count('"response.function_call_arguments.delta"') - 3,
}


@every_surface
def test_texts_are_sent_as_they_come(surface: Surface) -> None:
    """sglang #11888, ds4 #1006: a file of minutes in one piece at its end."""
    token_ids = spell_out(f"<tool_call>run<arg_key>command</arg_key><arg_value>{'a' * 50}</arg_value></tool_call>")
    call = prepare(surface, surface.body("hello", FUNCTIONS, False), MODEL)
    stream, _ = answer(call, MODEL, steps(token_ids, range(len(token_ids)), "stop"))
    assert _PIECES[surface](stream) >= 49


@every_surface
def test_a_stray_tag_behind_a_name(surface: Surface) -> None:
    """fw-ai/python-sdk #119: a tool named `tool_12</arg_value>`."""
    text = "<tool_call>run</arg_value><arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>"
    assert all_ways(surface, text).calls == (LS,)


@every_surface
def test_a_missing_tag_behind_a_name(surface: Surface) -> None:
    """vllm PR #47190: recovered where the name is declared, else text."""
    text = "<tool_call>runcommand</arg_key><arg_value>ls</arg_value></tool_call>"
    assert all_ways(surface, text).calls == (LS,)
    text = text.replace("run", "shell")
    assert all_ways(surface, text) == Said("", text, (), "stop")


@every_surface
def test_a_call_of_a_tool_that_is_not_declared_is_text(surface: Surface) -> None:
    """lmdeploy PR #4901, ormandj/sglang-glm53-flash-sm120 #5: a tool of the history, a name that is null."""
    text = "<tool_call>gone<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>"
    assert all_ways(surface, text) == Said("", text, (), "stop")
    assert all_ways(surface, "<tool_call></tool_call>") == Said("", "<tool_call></tool_call>", (), "stop")


FORCED: dict[str, dict[str, Any]] = {
    "chat": {"type": "function", "function": {"name": "run"}},
    "messages": {"type": "tool", "name": "run"},
    "responses": {"type": "function", "name": "run"},
}


@every_surface
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>", '{"command": "ls"}'),
        ("</tool_call>", "{}"),
        ("", "{}"),
        ("_in_terminal and I think</tool_call>", "{}"),
        (f"</tool_call>{CALL} and more", "{}"),
    ],
)
def test_a_call_that_must_be_made_is_made(surface: Surface, text: str, arguments: str) -> None:
    """The prompt ends in its beginning, so the model cannot but go on with it; whatever it writes, it is one call."""
    said = all_ways(surface, text, tool_choice=FORCED[surface.name])
    assert said == Said("", "", (("run", arguments),), "tool_calls")
    body = surface.body("hello", FUNCTIONS, False)
    plain, forced = (
        prepare(surface, each, MODEL).request.choices[0].prompt_token_ids
        for each in (body, body | {"tool_choice": FORCED[surface.name]})
    )
    assert forced[: len(plain)] == plain
    assert forced[len(plain) :] == encode("<tool_call>run")


def results() -> Iterator[tuple[Surface, dict[str, Any]]]:
    """A result in parts, in the words of each API."""
    parts = ["part one, ", "part two"]
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    chat = [{"type": "text", "text": text} for text in parts]
    yield (
        CHAT,
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": chat},
            ]
        },
    )
    yield (
        MESSAGES,
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "run", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": chat}]},
            ]
        },
    )
    yield (
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": "x"},
                {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [{"type": "input_text", "text": text} for text in parts],
                },
            ]
        },
    )


def test_a_result_in_parts_is_one_text_and_each_api_makes_the_same_prompt() -> None:
    """litellm PR #29471, vllm #39614: the result is lost."""
    prompts = [prepare(surface, body, MODEL).request.choices[0].prompt_token_ids for surface, body in results()]
    assert prompts[0] == prompts[1] == prompts[2]
    vocabulary = TOKENIZATION.vocabulary
    text = b"".join(map(vocabulary.token_bytes, prompts[0])).decode()
    assert text.count("part one, part two") == 1
    assert "None" not in text
