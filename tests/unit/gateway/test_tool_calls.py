"""Tool calls in GLM's format: what public parsers got wrong, and one law for all of it."""

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.gateway.choice import _merged
from lineclear.gateway.conversation import ToolDefinition
from lineclear.gateway.fragments import (
    Content,
    Fragment,
    Marker,
    MarkerScanner,
    Part,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from lineclear.gateway.tool_calls import ToolCallParser

TOOLS = (
    ToolDefinition("run", {"properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}}, {}),
    ToolDefinition("run_in_terminal", {"properties": {"command": {"type": "string"}}}, {}),
    ToolDefinition("list_files", {}, {}),
)


def fragments_of(text: str) -> list[Fragment]:
    """Text in which every tag is a tag."""
    scanner = MarkerScanner(frozenset(Marker))
    return [*scanner.push(text), *scanner.flush()]


def parse(fragments: list[Fragment], *, is_cut: bool = False) -> list[Part]:
    parser = ToolCallParser(TOOLS)
    parts = [part for fragment in fragments for part in parser.push(fragment)]
    return _merged([*parts, *parser.finish(is_cut=is_cut)])


def summary(parts: list[Part]) -> tuple[str, list[tuple[str, str, bool]]]:
    """The text, and each call's name, arguments and whether it is complete."""
    text = ""
    calls: list[tuple[str, str, bool]] = []
    for part in parts:
        match part:
            case Content(piece):
                text += piece
            case ToolCallStart(idx, name):
                assert idx == len(calls)
                calls.append((name, "", False))
            case ToolCallArguments(idx, piece):
                name, arguments, is_complete = calls[idx]
                assert not is_complete
                calls[idx] = (name, arguments + piece, False)
            case ToolCallEnd(idx):
                calls[idx] = (*calls[idx][:2], True)
            case _:
                raise AssertionError(part)
    return text, calls


def read(text: str, *, is_cut: bool = False) -> tuple[str, list[tuple[str, object]]]:
    """The text, and each call's name and arguments; calls must be complete."""
    content, calls = summary(parse(fragments_of(text), is_cut=is_cut))
    assert all(is_complete for *_, is_complete in calls)
    return content, [(name, json.loads(arguments)) for name, arguments, _ in calls]


CALL = "<tool_call>run<arg_key>command</arg_key><arg_value>ls -l</arg_value></tool_call>"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain", "plain", []),
        (CALL, "", [("run", {"command": "ls -l"})]),
        ("<tool_call>list_files</tool_call>", "", [("list_files", {})]),
        ("<tool_call>\nlist_files\n</tool_call>", "", [("list_files", {})]),
        ("<tool_call>run_in_terminal</tool_call>", "", [("run_in_terminal", {})]),
        (f"Let me look.\n{CALL}\n\n{CALL} done", "Let me look.done", [("run", {"command": "ls -l"})] * 2),
        (
            (
                "<tool_call>run\n<arg_key>command</arg_key>\n<arg_value>a\n b</arg_value>\n"
                "<arg_key>timeout</arg_key>\n<arg_value>30</arg_value>\n</tool_call>"
            ),
            "",
            [("run", {"command": "a\n b", "timeout": 30})],
        ),
        (
            '<tool_call>run<arg_key>command</arg_key><arg_value>say "\\é\u2028"\t</arg_value></tool_call>',
            "",
            [("run", {"command": 'say "\\é\u2028"\t'})],
        ),
        ("<tool_call>run<arg_key>timeout</arg_key><arg_value></arg_value></tool_call>", "", [("run", {"timeout": ""})]),
    ],
)
def test_well_formed_calls(text: str, content: str, calls: list[tuple[str, object]]) -> None:
    assert read(text) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>unknown<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>",
        "<tool_call>ru<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>",
        "<tool_call></tool_call>",
        "<tool_call> </tool_call>",
        "<tool_call>run",
        "<tool_call>",
        "before <tool_call>nothing of the kind",
        "a </tool_call> b <arg_key> c",
        "<tool_call>run</think></tool_call>",
    ],
)
def test_what_is_no_call_of_a_declared_tool_is_text_with_its_tags(text: str) -> None:
    assert read(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        # a name with a stray tag behind it
        ("<tool_call>run</arg_value><arg_key>command</arg_key><arg_value>a</arg_value></tool_call>", {"command": "a"}),
        # the tag between name and key is missing
        ("<tool_call>runcommand</arg_key><arg_value>a</arg_value></tool_call>", {"command": "a"}),
        # the tag between key and value is missing
        ("<tool_call>run<arg_key>command<arg_value>a</arg_value></tool_call>", {"command": "a"}),
        # the value is not closed
        ("<tool_call>run<arg_key>command</arg_key><arg_value>a</tool_call>", {"command": "a"}),
        # the call is not closed, but its last value is
        ("<tool_call>run<arg_key>command</arg_key><arg_value>a</arg_value>", {"command": "a"}),
        # a key without a value
        ("<tool_call>run<arg_key>command</arg_key></tool_call>", {}),
        # the same key twice: the first counts, as it was already sent
        (
            (
                "<tool_call>run<arg_key>command</arg_key><arg_value>a</arg_value>"
                "<arg_key>command</arg_key><arg_value>b</arg_value></tool_call>"
            ),
            {"command": "a"},
        ),
        # words between the arguments
        ("<tool_call>run<arg_key>command</arg_key>=<arg_value>a</arg_value>;</tool_call>", {"command": "a"}),
    ],
)
def test_what_was_clearly_meant_is_repaired_and_counted(text: str, calls: object) -> None:
    parser = ToolCallParser(TOOLS)
    parts = [part for fragment in fragments_of(text) for part in parser.push(fragment)]
    content, found = summary(_merged([*parts, *parser.finish(is_cut=False)]))
    assert (content, [(name, json.loads(arguments)) for name, arguments, _ in found]) == ("", [("run", calls)])
    assert parser.num_repaired > 0


def test_a_missing_tag_after_a_name_prefers_the_longest_declared_name() -> None:
    text = "<tool_call>run_in_terminalcommand</arg_key><arg_value>a</arg_value></tool_call>"
    assert read(text) == ("", [("run_in_terminal", {"command": "a"})])


def test_a_call_that_begins_inside_another_ends_that_one() -> None:
    assert read(CALL.removesuffix("</tool_call>") + CALL)[1] == [("run", {"command": "ls -l"})] * 2
    assert read("<tool_call>ru" + CALL) == ("<tool_call>ru", [("run", {"command": "ls -l"})])


def test_a_refused_call_does_not_spoil_the_next_one() -> None:
    assert read(f"<tool_call>nobody</tool_call>{CALL}") == (
        "<tool_call>nobody</tool_call>",
        [("run", {"command": "ls -l"})],
    )


@pytest.mark.parametrize("end", range(len("<tool_call>run<arg_key>"), len(CALL) - len("</tool_call>")))
def test_a_call_that_is_cut_off_is_never_complete_nor_valid(end: int) -> None:
    content, calls = summary(parse(fragments_of(CALL)[:1] + fragments_of(CALL[len("<tool_call>") : end]), is_cut=True))
    assert content == ""
    [(name, arguments, is_complete)] = calls
    assert (name, is_complete) == ("run", False)
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)


def test_a_call_that_is_cut_off_before_its_end_tag_is_not_taken_for_complete() -> None:
    text = CALL.removesuffix("</tool_call>")
    _, [(_, arguments, is_complete)] = summary(parse(fragments_of(text), is_cut=True))
    assert (arguments, is_complete) == ('{"command": "ls -l"', False)


def test_tags_that_were_written_as_text_are_part_of_the_value() -> None:
    value = "print('</arg_value></tool_call>')"
    fragments: list[Fragment] = [
        Marker.TOOL_CALL_OPEN,
        Text("run"),
        Marker.ARG_KEY_OPEN,
        Text("command"),
        Marker.ARG_KEY_CLOSE,
        Marker.ARG_VALUE_OPEN,
        Text(value),
        Marker.ARG_VALUE_CLOSE,
        Marker.TOOL_CALL_CLOSE,
    ]
    _, [(_, arguments, _)] = summary(parse(fragments))
    assert json.loads(arguments) == {"command": value}


def test_string_arguments_are_sent_as_they_come_and_names_at_once_when_they_are_sure() -> None:
    parser = ToolCallParser(TOOLS)
    assert parser.push(Marker.TOOL_CALL_OPEN) == []
    assert parser.push(Text("run")) == []
    assert parser.push(Marker.ARG_KEY_OPEN) == [ToolCallStart(0, "run"), ToolCallArguments(0, "{")]
    for fragment in (Text("command"), Marker.ARG_KEY_CLOSE):
        assert parser.push(fragment) == []
    assert parser.push(Marker.ARG_VALUE_OPEN) == [ToolCallArguments(0, '"command": "')]
    assert parser.push(Text('a"')) == [ToolCallArguments(0, 'a\\"')]


def test_whitespace_before_text_is_kept() -> None:
    assert read("a \n b ") == ("a \n b ", [])
    assert read(" <tool_call>nobody") == (" <tool_call>nobody", [])


def test_an_undeclared_name_is_known_for_text_before_it_ends() -> None:
    parser = ToolCallParser(TOOLS)
    parser.push(Marker.TOOL_CALL_OPEN)
    assert parser.push(Text("x")) == [Content("<tool_call>x")]


pieces = st.one_of(
    st.sampled_from([marker.value for marker in Marker]),
    st.sampled_from([CALL, "run", "run_in", "list_files", "command", "timeout", " ", "\n", '"', "12", "{", "é"]),
)
answers = st.lists(pieces, max_size=14).map("".join)


@given(text=answers, cuts=st.lists(st.integers(0, 400), max_size=12), is_cut=st.booleans())
@example(text=CALL + CALL, cuts=list(range(200)), is_cut=False)
@example(text="a \n<tool_call>nobody </tool_call> \n b", cuts=list(range(40)), is_cut=False)
def test_how_the_text_is_cut_changes_nothing(text: str, cuts: list[int], is_cut: bool) -> None:
    scanner = MarkerScanner(frozenset(Marker))
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    fragments = [fragment for start, end in itertools.pairwise(borders) for fragment in scanner.push(text[start:end])]
    fragments += scanner.flush()
    assert summary(parse(fragments, is_cut=is_cut)) == summary(parse(fragments_of(text), is_cut=is_cut))


@given(text=answers, is_cut=st.booleans())
def test_complete_calls_are_declared_and_valid_and_cut_ones_are_not_valid(text: str, is_cut: bool) -> None:
    parser = ToolCallParser(TOOLS)
    parts = [part for fragment in fragments_of(text) for part in parser.push(fragment)]
    _, calls = summary([*parts, *parser.finish(is_cut=is_cut)])
    assert (parser.num_started, parser.num_complete) == (len(calls), sum(complete for *_, complete in calls))
    for name, arguments, is_complete in calls:
        assert name in {tool.name for tool in TOOLS}
        if is_complete:
            assert isinstance(json.loads(arguments), dict)
        else:
            with pytest.raises(json.JSONDecodeError):
                json.loads(arguments)


@given(words=st.text(alphabet="ab<>/_ \n", max_size=30))
def test_text_without_tags_passes_unchanged(words: str) -> None:
    assert summary(parse([Text(character) for character in words])) == (words, [])
