"""Public formats, row by row; whatever a row is, it becomes events or an error that names row and field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.errors import TraceError
from lineclear.trace.events import Arrived, Ended, Event, FirstByte, Sampling
from lineclear.trace.importers.azure import AzureParser
from lineclear.trace.importers.mooncake import MooncakeParser
from lineclear.trace.importers.request_log import RequestLogParser
from lineclear.trace.importers.rows import RowParser
from lineclear.trace.importers.sessions import SessionParser
from lineclear.trace.importers.text_blocks import text_blocks, text_len
from lineclear.trace.importers.transcripts import TranscriptParser

MOONCAKE = {"timestamp": 1500, "input_length": 513, "output_length": 9, "hash_ids": [0, 7]}
TRANSCRIPT = {"timestamp": "2500000", "session_id": "s", "input": "x" * 600, "output": "y" * 9}
LOG = {
    "timestamp": 10.5,
    "session": "s",
    "duration_s": 2.0,
    "request": {"messages": [{"role": "user", "content": "z" * 600}], "temperature": 0.5, "max_tokens": 7},
    "response": {
        "choices": [{"finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 150, "completion_tokens": 5},
    },
}
TURN = {
    "t": 2.0,
    "type": "n",
    "in": 130,
    "out": 4,
    "hash_ids": [1, 2],
    "stop": "tool_use",
    "api_time": 3.0,
    "ttft": 1.0,
}
SESSION = {
    "block_size": 64,
    "requests": [TURN, {"type": "subagent", "t": 5.0, "requests": [{**TURN, "api_time": None, "ttft": None}]}],
}
ROWS: dict[str, tuple[type[RowParser], Any]] = {
    "mooncake": (MooncakeParser, MOONCAKE),
    "transcripts": (TranscriptParser, TRANSCRIPT),
    "request_log": (RequestLogParser, LOG),
    "sessions": (SessionParser, SESSION),
}


def test_mooncake() -> None:
    assert MooncakeParser().parse(3, json.dumps(MOONCAKE)) == [
        Arrived(at_s=1.5, request="3", prompt_len=513, blocks=(0, 7)),
        Ended(request="3", output_len=9),
    ]


def test_azure() -> None:
    parser = AzureParser()
    assert parser.parse(1, "TIMESTAMP,ContextTokens,GeneratedTokens\r\n") == []
    first = parser.parse(2, "2023-11-16 18:17:03.9799600,4808,10\r\n")[0]
    later = parser.parse(3, "2023-11-16 18:17:04.0319600,3180,8\r\n")[0]
    assert isinstance(first, Arrived)
    assert isinstance(later, Arrived)
    assert (first.prompt_len, first.blocks) == (4808, ())
    assert later.at_s - first.at_s == pytest.approx(0.052, abs=1e-6)


def test_sessions_nest_subagents_and_keep_ids_apart() -> None:
    parser = SessionParser(stagger_s=100)
    parser.parse(1, json.dumps(SESSION))
    main, first_byte, end, child, child_end = parser.parse(2, json.dumps(SESSION))
    base = 1 << 32
    assert main == Arrived(at_s=102, request="s2-0", session="s2", prompt_len=130, blocks=(base + 1, base + 2))
    assert first_byte == FirstByte(at_s=103, request="s2-0")
    assert end == Ended(at_s=105, request="s2-0", output_len=4, reason="tool_use")
    assert isinstance(child, Arrived)
    assert (child.at_s, child.session, child.parent, child.blocks) == (107, "s2.1", "s2", main.blocks)
    assert child_end == Ended(request="s2-1", output_len=4, reason="tool_use")


@pytest.mark.parametrize("timestamp", ["2500000", 2500000])
def test_transcripts(timestamp: object) -> None:
    arrived, end = TranscriptParser().parse(1, json.dumps({**TRANSCRIPT, "timestamp": timestamp}))
    assert isinstance(arrived, Arrived)
    assert (arrived.at_s, arrived.session, arrived.prompt_len, len(arrived.blocks)) == (2.5, "s", 150, 2)
    assert end == Ended(request="1", output_len=3)


@pytest.mark.parametrize("is_batch", [False, True])
def test_request_log(is_batch: bool) -> None:
    row = {**LOG, "body": LOG["request"], "response": {"body": LOG["response"]}} if is_batch else LOG
    row = {name: value for name, value in row.items() if not (is_batch and name == "request")}
    arrived, end = RequestLogParser().parse(4, json.dumps(row))
    assert isinstance(arrived, Arrived)
    assert (arrived.at_s, arrived.session, arrived.prompt_len, len(arrived.blocks)) == (10.5, "s", 150, 2)
    assert (arrived.max_output_len, arrived.sampling) == (7, Sampling(temperature=0.5))
    assert end == Ended(at_s=12.5, request="4", output_len=5, reason="tool_use")


def test_a_log_without_answer_and_with_a_date() -> None:
    row = {"timestamp": "2026-01-01T00:00:01Z", "request": {"prompt": "hello"}}
    arrived, end = RequestLogParser().parse(1, json.dumps(row))
    assert isinstance(arrived, Arrived)
    assert (arrived.at_s, arrived.prompt_len, end) == (1767225601.0, 2, Ended(request="1", output_len=0))


@given(st.text(max_size=900), st.text(max_size=300), st.text(max_size=300))
def test_texts_share_blocks_as_far_as_they_are_equal(shared: str, one: str, other: str) -> None:
    left, right = text_blocks(shared + one), text_blocks(shared + other)
    num_equal = len(shared.encode()) // 256
    assert left[:num_equal] == right[:num_equal]
    assert (left == right) == (
        (shared + one).encode()[: 256 * len(left)] == (shared + other).encode()[: 256 * len(right)]
    )
    assert len(left) <= text_len(shared + one) // 64


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(ROWS)), st.data())
def test_a_damaged_row_is_used_or_named(name: str, data: st.DataObject) -> None:
    parser, row = ROWS[name]
    damaged = json.loads(json.dumps(row))
    place = damaged
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(json_values)
        break
    events, refused = parsed_or_refused(parser(), json.dumps(damaged))
    assert refused is None or refused.line == 5
    assert not events or isinstance(events[0], Arrived)


def parsed_or_refused(parser: RowParser, line: str) -> tuple[list[Event], TraceError | None]:
    try:
        return parser.parse(5, line), None
    except TraceError as error:
        return [], error


@pytest.mark.parametrize("parser", [AzureParser, *(parser for parser, _ in ROWS.values())])
@given(noise=st.text(max_size=60))
def test_noise_is_named(parser: type[RowParser], noise: str) -> None:
    with pytest.raises(TraceError, match=r"^line 5: "):
        parser().parse(5, noise)


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("mooncake", {"input_length": 512}, "input_length"),
        ("mooncake", {"hash_ids": [-1]}, "hash_ids"),
        ("mooncake", {"timestamp": "1"}, "timestamp"),
        ("sessions", {"block_size": 32}, "block_size"),
        ("sessions", {"requests": [{**TURN, "in": 64}]}, "in"),
        ("sessions", {"requests": 3}, "requests"),
        ("transcripts", {"timestamp": "now"}, "timestamp"),
        ("transcripts", {"input": 3}, "input"),
        ("request_log", {"request": {}}, "request"),
        ("request_log", {"timestamp": "noon"}, "timestamp"),
    ],
)
def test_bad_fields_are_named(name: str, change: dict[str, object], field: str) -> None:
    parser, row = ROWS[name]
    with pytest.raises(TraceError) as caught:
        parser().parse(5, json.dumps({**row, **change}))
    assert caught.value.field == field
