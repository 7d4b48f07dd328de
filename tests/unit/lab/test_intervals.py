import pytest

from lineclear.base.errors import ConfigError
from lineclear.lab.intervals import exact_interval, wilson_interval


def test_none_in_ten_thousand_means_below_three() -> None:
    low, high = exact_interval(0, 10_000)
    assert low == 0.0
    assert high * 10_000 == pytest.approx(2.995, abs=0.002)


@pytest.mark.parametrize(
    ("found", "of", "low", "high"),
    [(4, 10_000, 1.0900e-4, 1.02386e-3), (5, 10, 0.187086, 0.812914), (1, 20, 0.001265, 0.248733)],
)
def test_exact_bounds_are_those_of_the_tables(found: int, of: int, low: float, high: float) -> None:
    assert exact_interval(found, of) == pytest.approx((low, high), rel=1e-3)


def test_wilson_bounds_are_those_of_the_tables() -> None:
    assert wilson_interval(5, 10) == pytest.approx((0.236593, 0.763407), rel=1e-5)
    assert wilson_interval(0, 10)[0] == 0.0
    assert wilson_interval(10, 10)[1] == 1.0


@pytest.mark.parametrize("of", [1, 7, 40])
def test_the_share_is_always_inside_and_all_is_the_mirror_of_none(of: int) -> None:
    for found in range(of + 1):
        for low, high in (exact_interval(found, of), wilson_interval(found, of)):
            assert 0.0 <= low <= found / of <= high <= 1.0
    assert exact_interval(of, of)[0] == pytest.approx(1 - exact_interval(0, of)[1])


@pytest.mark.parametrize(("found", "of", "field"), [(1, 0, "num_all"), (3, 2, "num_found"), (-1, 2, "num_found")])
def test_nonsense_is_refused_by_name(found: int, of: int, field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        exact_interval(found, of)
