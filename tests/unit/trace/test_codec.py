"""Traces come back from their lines as they went in; what cannot be is named by line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.errors import TraceError
from lineclear.trace.codec import TraceDecoder, TraceEncoder, common_prefix_len
from lineclear.trace.events import Arrived, Cancelled, Ended, Event, FirstByte, Header, Sampling, TokensSent

BLOCK_LEN = 4
HEADER = Header(version=1, block_len=BLOCK_LEN, source="test")

times = st.floats(0, 1e9)
names = st.text(max_size=5)
counts = st.integers(0, 2**40)
blocks = st.lists(st.integers(0, 5), max_size=6).map(tuple)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrived:
    ids = draw(blocks)
    least = max(1, (len(ids) - 1) * BLOCK_LEN + 1)
    return Arrived(
        at_s=draw(times),
        request=draw(names),
        session=draw(st.sampled_from(["", "a", "b"])),
        parent=draw(st.sampled_from(["", "a"])),
        prompt_len=draw(st.integers(least, least + 100)),
        blocks=ids,
        max_output_len=draw(st.none() | counts),
        sampling=Sampling(temperature=draw(st.none() | st.floats(0, 2)), seed=draw(st.none() | counts)),
    )


events = st.one_of(
    arrivals(),
    st.builds(FirstByte, at_s=times, request=names),
    st.builds(TokensSent, at_s=times, request=names, count=counts),
    st.builds(Ended, at_s=st.none() | times, request=names, output_len=counts, cached_len=st.none() | counts),
    st.builds(Cancelled, at_s=times, request=names, output_len=counts),
)


def decoder() -> TraceDecoder:
    made = TraceDecoder()
    assert made.header(TraceEncoder().header(HEADER)) == HEADER
    return made


@given(st.lists(events, max_size=12))
def test_events_come_back(told: list[Event]) -> None:
    encoder, back = TraceEncoder(), decoder()
    lines = [encoder.line(event) for event in told]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)
    assert [back.event(line) for line in lines] == told


def test_a_prompt_that_grows_costs_its_new_blocks_alone() -> None:
    encoder = TraceEncoder()
    long = tuple(range(1000, 2000))
    encoder.line(Arrived(at_s=0, request="1", session="s", prompt_len=4000, blocks=long))
    line = encoder.line(Arrived(at_s=1, request="2", session="s", prompt_len=4004, blocks=(*long, 7)))
    assert len(line) < 150


@given(st.binary(max_size=80))
def test_noise_is_refused_with_its_line(noise: bytes) -> None:
    back = decoder()
    with pytest.raises(TraceError, match=r"^line 2: "):
        back.event(noise)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"event":"arrived","at_s":-1,"request":"1","prompt_len":1}', "at_s"),
        ('{"event":"arrived","at_s":0,"request":"1","prompt_len":0}', "prompt_len"),
        ('{"event":"arrived","at_s":0,"request":"1","prompt_len":4,"blocks":[1,2]}', "prompt_len"),
        ('{"event":"arrived","at_s":0,"request":"1","session":"s","prompt_len":4,"keep":1}', "keep"),
        ('{"event":"arrived","at_s":0,"request":"1","session":"s","prompt_len":4,"keep":-1}', "keep"),
        ('{"event":"tokens","at_s":0,"request":"1","count":-1}', "tokens"),
        ('{"event":"ended","request":"1","output_len":-1}', "tokens"),
        ('{"event":"burst","request":"1"}', "event"),
    ],
)
def test_what_cannot_be_is_refused_by_name(line: str, field: str) -> None:
    with pytest.raises(TraceError) as caught:
        decoder().event(line.encode())
    assert (caught.value.line, caught.value.field) == (2, field)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"", "header"),
        (b"{}", "header"),
        (b'{"event":"header","version":2,"block_len":4,"source":""}', "version"),
        (b'{"event":"header","version":1,"block_len":0,"source":""}', "block_len"),
    ],
)
def test_a_header_that_cannot_be_is_refused(line: bytes, field: str) -> None:
    with pytest.raises(TraceError) as caught:
        TraceDecoder().header(line)
    assert (caught.value.line, caught.value.field) == (1, field)


@given(blocks, blocks)
def test_common_prefix_is_that_of_a_plain_count(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert common_prefix_len(one, other) == expected
