from typing import Any

import pytest

from lineclear.protocol.drafts import DraftCounts


def test_a_verify_is_counted_by_position() -> None:
    counts = DraftCounts()
    counts.record(num_proposed=3, num_accepted=2)
    counts.record(num_proposed=2, num_accepted=0)
    assert counts == DraftCounts(num_verifies=2, proposed_by_position=[2, 2, 1], accepted_by_position=[1, 1, 0])


def test_merging_adds_accounts_of_different_lengths() -> None:
    short = DraftCounts(num_verifies=1, proposed_by_position=[1], accepted_by_position=[1])
    long = DraftCounts(num_verifies=2, proposed_by_position=[2, 1], accepted_by_position=[1, 0])
    expected = DraftCounts(num_verifies=3, proposed_by_position=[3, 1], accepted_by_position=[2, 0])
    for first, second in ((short, long), (long, short)):
        total = DraftCounts()
        total.merge(first)
        total.merge(second)
        assert total == expected


def test_accounts_do_not_share_lists() -> None:
    first, second = DraftCounts(), DraftCounts()
    first.record(1, 1)
    assert second == DraftCounts()
    second.merge(first)
    first.record(1, 1)
    assert second.proposed_by_position == [1]


@pytest.mark.parametrize(
    "fields",
    [
        {"num_verifies": 1, "proposed_by_position": [1], "accepted_by_position": []},
        {"num_verifies": 1, "proposed_by_position": [1], "accepted_by_position": [2]},
        {"num_verifies": 1, "proposed_by_position": [2], "accepted_by_position": [1]},
        {"num_verifies": 2, "proposed_by_position": [1, 2], "accepted_by_position": [0, 0]},
        {"num_verifies": 2, "proposed_by_position": [2, 2], "accepted_by_position": [0, 1]},
        {"num_verifies": 1, "proposed_by_position": [1], "accepted_by_position": [-1]},
    ],
)
def test_impossible_accounts_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="draft counts"):
        DraftCounts(**fields)
