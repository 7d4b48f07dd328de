"""Where the thinking ends and the answer begins."""

import pytest

from lineclear.gateway.fragments import Fragment, Marker, MarkerScanner, Reasoning, Text
from lineclear.gateway.reasoning import ReasoningSplitter


def split(
    fragments: list[Fragment], *, starts_thinking: bool = True, has_tools: bool = True
) -> list[Reasoning | Fragment]:
    splitter = ReasoningSplitter(starts_thinking=starts_thinking, has_tools=has_tools)
    return [piece for fragment in fragments for piece in splitter.push(fragment)]


def test_thinking_ends_at_its_tag() -> None:
    assert split([Text("a"), Marker.THINK_CLOSE, Text("b")]) == [Reasoning("a"), Text("b")]


def test_a_tool_call_ends_the_thinking_too() -> None:
    assert split([Text("a"), Marker.TOOL_CALL_OPEN]) == [Reasoning("a"), Marker.TOOL_CALL_OPEN]


def test_without_tools_a_tool_tag_is_part_of_the_thinking() -> None:
    assert split([Marker.TOOL_CALL_OPEN], has_tools=False) == [Reasoning("<tool_call>")]


def test_a_repeated_opening_tag_is_dropped_at_the_start_only() -> None:
    assert split([Marker.THINK_OPEN, Text("a"), Marker.THINK_OPEN]) == [Reasoning("a"), Reasoning("<think>")]


def test_a_model_may_begin_to_think_by_itself() -> None:
    pieces = split([Marker.THINK_OPEN, Text("a"), Marker.THINK_CLOSE, Text("b")], starts_thinking=False)
    assert pieces == [Reasoning("a"), Text("b")]


def test_a_stray_closing_tag_is_text() -> None:
    assert split([Text("a"), Marker.THINK_CLOSE], starts_thinking=False) == [Text("a"), Text("</think>")]


def test_tags_of_arguments_make_no_sense_while_thinking() -> None:
    assert split([Marker.ARG_KEY_OPEN]) == [Reasoning("<arg_key>")]


@pytest.mark.parametrize("cut", range(len("a</think>b") + 1))
def test_scanned_tags_are_found_wherever_the_text_is_cut(cut: int) -> None:
    scanner = MarkerScanner(frozenset({Marker.THINK_CLOSE}))
    text = "a</think>b"
    fragments = [*scanner.push(text[:cut]), *scanner.push(text[cut:]), *scanner.flush()]
    joined = [fragment for fragment in fragments if fragment is Marker.THINK_CLOSE]
    assert joined == [Marker.THINK_CLOSE]
    assert "".join(f.text for f in fragments if isinstance(f, Text)) == "ab"


def test_half_a_tag_at_the_end_is_text() -> None:
    scanner = MarkerScanner(frozenset(Marker))
    assert scanner.push("a</thi") == [Text("a")]
    assert scanner.flush() == [Text("</thi")]
