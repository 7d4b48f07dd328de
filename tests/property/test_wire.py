"""Bytes from a peer give a message or a PeerError, and nothing else."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.base.errors import PeerError
from lineclear.protocol import wire
from lineclear.protocol.sampling import SamplingParams

COUNTS = st.integers(0, 2**40)
IDS = st.integers(0, 2**32 - 1)
FLOATS = st.floats(allow_nan=False)

SAMPLINGS = st.builds(
    SamplingParams,
    max_tokens=COUNTS,
    temperature=FLOATS,
    top_p=FLOATS,
    top_k=st.none() | COUNTS,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    logit_bias=st.dictionaries(IDS, FLOATS, max_size=4),
    stop_token_ids=st.lists(IDS, max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    min_tokens=COUNTS,
    logprobs=st.none() | COUNTS,
)
SUBMITS = st.builds(
    wire.SubmitSequence,
    sequence_id=COUNTS,
    request_id=st.text(max_size=20),
    prompt_token_ids=st.lists(IDS, min_size=1, max_size=20),
    sampling=SAMPLINGS,
    want_draft_counts=st.booleans(),
)
LOGPROBS = st.builds(wire.TokenLogprobs, token_id=IDS, logprob=FLOATS, top=st.lists(st.tuples(IDS, FLOATS), max_size=3))


@st.composite
def outputs(draw: st.DrawFn) -> wire.SequenceOutput:
    token_ids = draw(st.lists(IDS, max_size=4))
    finish_reason = draw(st.sampled_from([None, "stop", "length", "cancelled", "error"]))
    return wire.SequenceOutput(
        sequence_id=draw(COUNTS),
        token_ids=token_ids,
        logprobs=draw(st.none() | st.lists(LOGPROBS, min_size=len(token_ids), max_size=len(token_ids))),
        finish_reason=finish_reason,
        stop_token_id=draw(st.none() | IDS) if finish_reason == "stop" else None,
        error=draw(st.text(max_size=20)) if finish_reason == "error" else None,
        num_cached_tokens=draw(COUNTS),
    )


@given(SUBMITS)
def test_submissions_survive(message: Any) -> None:
    assert wire.decode_to_worker(wire.encode(message)) == message


@given(st.lists(outputs(), max_size=5))
def test_outputs_survive(some: list[wire.SequenceOutput]) -> None:
    message = wire.StepOutputs(outputs=some)
    assert wire.decode_to_gateway(wire.encode(message)) == message


@given(st.binary(max_size=200))
@example(b"\x81\xa4type\xa5drain")
def test_any_bytes_give_a_message_or_a_peers_error(data: st.DataObject) -> None:
    for decode in (wire.decode_to_worker, wire.decode_to_gateway):
        try:
            message = decode(data)
        except PeerError:
            continue
        assert decode(wire.encode(message)) == message


@given(SUBMITS, st.data())
def test_a_damaged_message_gives_a_message_or_a_peers_error(message: Any, data: st.DataObject) -> None:
    damaged = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    try:
        decoded = wire.decode_to_worker(damaged)
    except PeerError:
        return
    wire.encode(decoded)
