"""The `calibrated` detector on the published cases, within its budget, and the file of its baselines."""

import json
from array import array

import pytest

from lineclear.base.errors import ConfigError
from lineclear.guard.baselines import (
    MIN_LOOP_TOKENS,
    Baselines,
    HealthySequence,
    ModeBaselines,
    decode_baselines,
    encode_baselines,
    learn,
    llr_table,
)
from lineclear.guard.calibrated import CalibratedDetector, CalibratedModel
from lineclear.guard.evidence import NO_RUN, Run, occurs_before, repeated_end
from lineclear.guard.guard import Guard
from lineclear.protocol.drafts import DraftCounts
from tests.unit.guard.streams import Stream, findings, stream

HEALTHY = (0.951, 0.842 / 0.951, 0.700 / 0.842)
CORRUPTED = (0.050, 0.04, 0.0)
EIGHT = (0.95, 0.93, 0.91, 0.9, 0.88, 0.86, 0.85, 0.83)
BUDGET = 100.0


def baselines_of(shares: tuple[float, ...]) -> ModeBaselines:
    healthy = [stream(shares, 500, seed) for seed in range(200)]
    sequences = [HealthySequence(each.tokens, each.num_prompt_tokens, each.verifies) for each in healthy]
    return learn(sequences, draft_tokens=len(shares), alarms_per_million=BUDGET)


@pytest.fixture(scope="module")
def three() -> ModeBaselines:
    return baselines_of(HEALTHY)


def detector(baselines: ModeBaselines) -> CalibratedDetector:
    return CalibratedDetector(CalibratedModel(baselines))


def test_the_baselines_are_what_healthy_traffic_did(three: ModeBaselines) -> None:
    assert three.accept_by_position == pytest.approx(HEALTHY, abs=0.01)
    assert three.loop_tokens == MIN_LOOP_TOKENS
    assert three.num_sequences == 200


@pytest.mark.parametrize("accept_length", [1.46, 1.589])
def test_what_fixed_limits_miss_is_found(three: ModeBaselines, accept_length: float) -> None:
    ((kind, num_tokens),) = findings(detector(three), Stream.of_lengths(accept_length, 400, num_drafts=3))
    assert kind == "collapse"
    assert num_tokens < 32


def test_the_published_collapse_is_found_whenever_it_begins(three: ModeBaselines) -> None:
    for start in (0, 100, 1000):
        before, after = stream(HEALTHY, start, 99), stream(CORRUPTED, 200, 5)
        counts = [each.num_accepted for each in (*before.verifies, *after.verifies)]
        ((kind, num_tokens),) = findings(detector(three), Stream.of_counts(counts, 3))
        assert kind == "collapse"
        assert start <= num_tokens < start + 40


def test_false_alarms_stay_within_the_budget(three: ModeBaselines) -> None:
    num_tokens = num_alarms = 0
    for seed in range(1000, 1200):
        healthy = stream(HEALTHY, 500, seed)
        num_tokens += healthy.verifies[-1].num_tokens
        num_alarms += len(findings(detector(three), healthy))
    # Twice what the budget allows over so many tokens: the draws are fixed, the allowance is for their number.
    assert num_alarms <= 2 * BUDGET * num_tokens / 1e6


def test_the_published_loop_is_found() -> None:
    ((kind, num_tokens),) = findings(detector(baselines_of(EIGHT)), Stream.looping(0.845, 600, num_drafts=8))
    assert kind == "loop"
    assert num_tokens < 2 * MIN_LOOP_TOKENS


@pytest.mark.parametrize("period", [None, 1, 12])
def test_a_faithful_copy_is_no_loop(three: ModeBaselines, period: int | None) -> None:
    assert findings(detector(three), Stream.copying(800, num_drafts=3, period=period)) == []


def test_repetition_without_acceptance_is_no_loop(three: ModeBaselines) -> None:
    kinds = [kind for kind, _ in findings(detector(three), Stream.looping(0.5, 600, num_drafts=3))]
    assert kinds == ["collapse"]


def test_a_table_has_the_ratio_of_every_outcome() -> None:
    table = llr_table([0.8, 0.5])
    assert table[0] == [0.0]
    assert [len(row) for row in table] == [1, 2, 3]
    for row in table[1:]:
        assert row[0] > 0 > row[-1]
    assert table[2][0] == table[1][0]


def test_runs_are_found_with_their_shortest_period() -> None:
    tokens = array("I", [9, 8, 7, *[1, 2, 3] * 10])
    assert repeated_end(tokens, 0, range(1, 9), 12) == Run(3, 30)
    assert repeated_end(tokens, 20, range(1, 9), 12) == Run(3, 13)
    assert repeated_end(tokens, 22, range(1, 9), 12) == NO_RUN
    assert repeated_end(array("I", range(40)), 0, range(1, 9), 12) == NO_RUN


def test_a_piece_occurs_only_where_whole_tokens_agree() -> None:
    tokens = array("I", [1, 256, 65536, 5, 6])
    assert occurs_before(tokens, 5, array("I", [256, 65536]))
    assert not occurs_before(tokens, 2, array("I", [256, 65536]))
    shifted = array("I")
    shifted.frombytes(tokens.tobytes()[1:5])
    assert not occurs_before(tokens, 5, shifted)


def bundle(three: ModeBaselines) -> Baselines:
    return Baselines(model="ab", draft_tokens=3, alarms_per_million=BUDGET, greedy=three, sampled=three)


def test_a_file_is_read_as_it_was_written(three: ModeBaselines) -> None:
    content = encode_baselines(bundle(three))
    assert decode_baselines(content, path="f", model="ab", draft_tokens=2) == bundle(three)


@pytest.mark.parametrize(
    ("change", "model", "draft_tokens", "said"),
    [
        ({"version": 2}, "ab", 3, "version 1; it has 2"),
        ({"draft_tokens": 4}, "ab", 3, "digest does not fit"),
        ({}, "cd", 3, "the served model, cd; they are of ab"),
        ({}, "ab", 4, "4 drafts or more; they have 3"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    three: ModeBaselines, change: dict[str, object], model: str, draft_tokens: int, said: str
) -> None:
    content = json.dumps(json.loads(encode_baselines(bundle(three))) | change).encode()
    with pytest.raises(ConfigError, match=said):
        decode_baselines(content, path="f", model=model, draft_tokens=draft_tokens)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_what_is_no_file_of_baselines_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError, match="guard_baselines"):
        decode_baselines(content, path="f", model="ab", draft_tokens=3)


def test_drift_is_told_by_position(three: ModeBaselines) -> None:
    guard = Guard("observe", bundle(three))
    for _ in range(100):
        guard.close(
            DraftCounts(num_verifies=20, proposed_by_position=[20] * 3, accepted_by_position=[10, 9, 7]), is_greedy=True
        )
    first, second, _ = guard.statistics([]).drift_by_position
    assert first < -1
    assert abs(second) < 1
