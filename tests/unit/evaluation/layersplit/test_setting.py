import pytest

from lineclear.base.errors import ConfigError
from lineclear.evaluation.layersplit.setting import (
    FULL_LENGTHS,
    PRESSURE,
    Setting,
    budget_for,
    sessions_for,
    wanted_capacity,
)
from lineclear.kv.layout import PartShape

INDEXED = [PartShape(layer, part, size) for layer in (0, 1, 3, 4) for part, size in (("latent", 832), ("index", 256))]
SHAPE = [*INDEXED, PartShape(2, "latent", 832)]
"""lineclear-tiny's: four layers with an indexer, one without."""


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_both_layouts_have_the_same_bytes(num_ranks: int) -> None:
    budget = budget_for(Setting(lengths=(40_000, 80_000), num_sessions=3), SHAPE, num_ranks)
    assert budget.tokens["replicated"] == 104_352  # three prompts of 40,000 tokens are 1.15 times that
    for layout, num_tokens in budget.tokens.items():
        assert num_tokens % 16 == 0
        assert 0 <= budget.kv_bytes - num_tokens * budget.row_bytes[layout] < 16 * budget.row_bytes[layout]
    assert budget.capacity_ratio >= wanted_capacity(5, num_ranks)


def test_there_is_room_for_the_longest_prompt() -> None:
    budget = budget_for(Setting(lengths=(1000, 5000), num_sessions=2), SHAPE, 2)
    assert 5000 < budget.tokens["replicated"] < 5200
    assert budget.room_sessions(1000) == 5


def test_memory_binds_from_the_first_length_on_with_room_for_the_longest() -> None:
    num_sessions = sessions_for(FULL_LENGTHS)
    num_tokens = budget_for(Setting(lengths=FULL_LENGTHS, num_sessions=num_sessions), SHAPE, 2).tokens["replicated"]
    assert max(FULL_LENGTHS) < num_tokens < num_sessions * min(FULL_LENGTHS)
    assert num_tokens == pytest.approx(num_sessions * min(FULL_LENGTHS) / PRESSURE, abs=16)
    assert sessions_for((40_000, 60_000, 80_000)) == 3


def test_even_shares_of_whole_layers_are_what_is_wanted() -> None:
    assert wanted_capacity(78, 8) == pytest.approx(0.97 * 7.8)


@pytest.mark.parametrize(
    ("lengths", "num_sessions", "field"),
    [((), 2, "lengths"), ((2000, 1000), 2, "lengths"), ((100,), 2, "lengths"), ((1000,), 1, "sessions")],
)
def test_what_cannot_be_measured_is_refused(lengths: tuple[int, ...], num_sessions: int, field: str) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: "):
        Setting(lengths=lengths, num_sessions=num_sessions)
