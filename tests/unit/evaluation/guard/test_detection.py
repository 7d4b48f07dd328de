"""The evaluation of detectors: what counts as wrong is exact, and each figure is what its name says."""

from array import array

from lineclear.bundled import checkpoint_path
from lineclear.config.components import EngineConfig
from lineclear.evaluation.figures import Figure
from lineclear.evaluation.guard.detection import Outcome, figures, run_damaged
from lineclear.guard.baselines import HealthySequence
from lineclear.guard.evidence import Verify

CONFIG = EngineConfig(max_total_tokens=32_768, draft_tokens=3)


def outcome(num_tokens: int, *, damaged_at: int | None = None, wrong_from: int | None = None) -> Outcome:
    record = HealthySequence(array("I", range(10 + num_tokens)), 10, [Verify(3, 3, num_tokens)])
    return Outcome(record, is_greedy=True, damaged_at=damaged_at, wrong_from=wrong_from)


def values(of: list[Figure]) -> dict[str, float]:
    return {each.name: each.value for each in of}


def test_figures_by_hand() -> None:
    healthy, falsely_judged = outcome(300), outcome(200)
    unharmed = outcome(100, damaged_at=10)
    found, missed = (outcome(200, damaged_at=20, wrong_from=30) for _ in range(2))
    too_early, late = (outcome(90, damaged_at=20, wrong_from=30) for _ in range(2))
    found_at = {id(falsely_judged): 50, id(found): 62, id(too_early): 25, id(late): 80}
    shown = values(
        list(
            figures(
                [healthy, falsely_judged, unharmed, found, missed, too_early, late],
                {"it": lambda each: found_at.get(id(each))},
            )
        )
    )
    assert (shown["requests"], shown["damaged"], shown["wrong"], shown["wrong_undamaged"]) == (7, 5, 4, 0)
    assert shown["wrong_with_time"] == 2
    assert shown["it_recall"] == 0.5
    assert shown["it_delay_median"] == 32
    assert shown["it_precision"] == 2 / 3
    assert shown["it_false"] == 1
    assert shown["it_false_per_million"] == 1e6 / 500


def test_only_the_damaged_go_wrong_and_all_is_written_down() -> None:
    (outcomes,) = run_damaged(checkpoint_path(), CONFIG, 8, damaged_share=0.6, seed=1)
    damaged = [each for each in outcomes if each.damaged_at is not None]
    assert 0 < len(damaged) < len(outcomes) == 8
    assert all(each.wrong_from is None for each in outcomes if each.damaged_at is None)
    assert any(each.wrong_from is not None for each in damaged)
    for each in damaged:
        assert each.wrong_from is None or each.wrong_from >= each.damaged_at - 1
    assert all(each.record.verifies for each in outcomes)
