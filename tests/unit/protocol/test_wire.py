from typing import Any

import msgspec
import pytest

from lineclear.base.errors import InvariantError, PeerError
from lineclear.protocol import wire
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.sampling import SamplingParams
from lineclear.protocol.verdicts import Verdict

COUNTS = DraftCounts(num_verifies=2, proposed_by_position=[2, 2], accepted_by_position=[2, 1])
FACTS = wire.ModelFacts(
    name="tiny",
    vocab_size=4096,
    max_model_len=131072,
    eos_token_ids=[1, 2],
    block_size=16,
    num_blocks=8192,
    draft_tokens=3,
    max_running=64,
    decisive={"model": "ab12", "dtype": "fp32"},
)

BROKEN = Verdict(
    kind="collapse",
    detector="calibrated",
    action="retry",
    num_tokens=130,
    evidence={"accept_length": 1.05, "cusum": 14.5},
    num_quarantined_blocks=12,
    prefill_id="prefill-0",
)
OBSERVED = Verdict(kind="loop", detector="seed", action="observe", num_tokens=200)

TO_WORKER = [
    wire.SubmitSequence(
        sequence_id=7,
        request_id="chat-1",
        prompt_token_ids=[1, 2, 3],
        sampling=SamplingParams(max_tokens=5, logit_bias={3: -1.5}, stop_token_ids=(1,), seed=-4),
        want_draft_counts=True,
        use_cache=False,
        guard=False,
        prefer_prefill="prefill-1",
        avoid_prefill=["prefill-0", "prefill-2"],
    ),
    wire.CancelSequence(sequence_id=7),
    wire.Drain(),
    wire.QueryStatistics(),
    wire.CheckInvariants(),
    wire.ReleaseQuarantine(worker_id="p0", rank=0, life=3),
    wire.PrefillInstances(endpoints=["127.0.0.1:7000"]),
    wire.Refused(reason="dtype: fp32 here, bf16 there"),
]
TO_GATEWAY = [
    wire.WorkerHello(version=wire.WIRE_VERSION, worker_id="w0", life=3, pid=42, model=FACTS),
    wire.StepOutputs(
        outputs=[
            wire.SequenceOutput(
                sequence_id=7,
                token_ids=[5],
                logprobs=[wire.TokenLogprobs(token_id=5, logprob=-0.5, top=[(5, -0.5), (6, -1.0)])],
                num_cached_tokens=32,
                draft=COUNTS,
            ),
            wire.SequenceOutput(sequence_id=8, finish_reason="stop", stop_token_id=2),
            wire.SequenceOutput(sequence_id=9, finish_reason="error", error="too long"),
            wire.SequenceOutput(sequence_id=10, token_ids=[4], finish_reason="broken", verdict=BROKEN),
            wire.SequenceOutput(sequence_id=11, token_ids=[4], verdict=OBSERVED),
        ]
    ),
    wire.WorkerStatistics(
        num_running=1,
        num_waiting=2,
        num_receiving=1,
        num_preemptions=3,
        num_damaged=1,
        blocks_free=4,
        blocks_held=5,
        blocks_quarantined=6,
        blocks_total=15,
        cached_prompt_tokens=7,
        prompt_tokens=8,
        output_tokens=9,
        draft=COUNTS,
        steps=10,
        step_seconds_total=1.5,
        tiers=wire.TierStatistics(
            blocks={"host": wire.TierBlocks(free=1, held=2, quarantined=0, total=3, block_bytes=4096)},
            hit_tokens={"device": 16, "host": 32},
            moved_bytes={"load": 8192},
            moving_seconds={"load": 0.5},
            num_waits=3,
            wait_seconds=0.25,
            num_prefetches=1,
            dropped_blocks=2,
            failures={"damaged": 1},
        ),
        guard=wire.GuardStatistics(
            num_verdicts={"collapse": {"observe": 1, "retry": 2}},
            num_judged_sequences=5,
            num_judged_tokens=700,
            num_forgotten_blocks=12,
            drift_by_position=[0.1, -0.5, 0.0],
            highest_cusum=0.75,
        ),
    ),
    wire.Leaving(),
    wire.Drained(),
    wire.QuarantineReleased(num_blocks=3),
    wire.InvariantsChecked(ok=False, detail="block 3 is lost"),
]


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_messages_to_a_worker_survive_the_wire(message: Any) -> None:
    assert wire.decode_to_worker(wire.encode(message)) == message


@pytest.mark.parametrize("message", TO_GATEWAY, ids=lambda message: type(message).__name__)
def test_messages_to_the_gateway_survive_the_wire(message: Any) -> None:
    assert wire.decode_to_gateway(wire.encode(message)) == message


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_a_gateway_takes_no_orders(message: Any) -> None:
    with pytest.raises(PeerError):
        wire.decode_to_gateway(wire.encode(message))


@pytest.mark.parametrize("message", TO_GATEWAY, ids=lambda message: type(message).__name__)
def test_a_worker_takes_no_reports(message: Any) -> None:
    with pytest.raises(PeerError):
        wire.decode_to_worker(wire.encode(message))


def raw(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        raw(),
        raw(type="unheard_of"),
        raw(type="cancel_sequence"),
        raw(type="cancel_sequence", sequence_id="7"),
        raw(type="cancel_sequence", sequence_id=-1),
        raw(type="cancel_sequence", sequence_id=7, why="because"),
        raw(type="drain") + b"\x00",
        raw(type="submit_sequence", sequence_id=1, request_id="r", prompt_token_ids=[], sampling={"max_tokens": 1}),
        raw(type="submit_sequence", sequence_id=1, request_id="r", prompt_token_ids=[-1], sampling={"max_tokens": 1}),
        raw(
            type="submit_sequence", sequence_id=1, request_id="r", prompt_token_ids=[2**32], sampling={"max_tokens": 1}
        ),
        raw(type="submit_sequence", sequence_id=1, request_id="r", prompt_token_ids=[1], sampling={}),
        b"\x91" * 100_000,
        b"\xa3\xff\xff\xff",
    ],
)
def test_nonsense_for_a_worker_is_a_peers_error(data: bytes) -> None:
    with pytest.raises(PeerError):
        wire.decode_to_worker(data)


@pytest.mark.parametrize(
    "output",
    [
        {"sequence_id": 1, "finish_reason": "bored"},
        {"sequence_id": 1, "finish_reason": "error"},
        {"sequence_id": 1, "error": "x"},
        {"sequence_id": 1, "finish_reason": "length", "stop_token_id": 3},
        {"sequence_id": 1, "finish_reason": "broken"},
        {"sequence_id": 1, "finish_reason": "broken", "verdict": msgspec.to_builtins(OBSERVED)},
        {"sequence_id": 1, "finish_reason": "stop", "verdict": msgspec.to_builtins(BROKEN)},
        {"sequence_id": 1, "verdict": msgspec.to_builtins(BROKEN)},
        {"sequence_id": 1, "verdict": msgspec.to_builtins(OBSERVED) | {"action": "pray"}},
        {"sequence_id": 1, "verdict": msgspec.to_builtins(OBSERVED) | {"evidence": {"cusum": float("inf")}}},
        {"sequence_id": 1, "token_ids": [1, 2], "logprobs": [{"token_id": 1, "logprob": -1.0}]},
        {"sequence_id": 1, "draft": {"num_verifies": 0, "proposed_by_position": [1], "accepted_by_position": [0]}},
    ],
)
def test_contradictory_outputs_are_a_peers_error(output: dict[str, Any]) -> None:
    with pytest.raises(PeerError):
        wire.decode_to_gateway(raw(type="step_outputs", outputs=[output]))


def test_an_oversized_message_is_refused_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 20)
    data = wire.encode(wire.Drain())
    assert len(data) <= 20
    with pytest.raises(InvariantError, match="InvariantsChecked"):
        wire.encode(wire.InvariantsChecked(ok=True, detail="x" * 30))
    with pytest.raises(PeerError, match="allowed: 20"):
        wire.decode_to_worker(data + b"\x00" * 20)


def test_a_million_token_prompt_fits() -> None:
    message = wire.SubmitSequence(
        sequence_id=1,
        request_id="r",
        prompt_token_ids=[200_000] * 1_000_000,
        sampling=SamplingParams(max_tokens=1),
    )
    assert len(wire.encode(message)) < wire.MAX_MESSAGE_BYTES // 4
