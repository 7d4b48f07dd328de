"""Figures of traces against plain models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.trace.events import Arrived, Ended
from lineclear.trace.requests import TracedRequest
from lineclear.trace.statistics import concurrency, hit_rate, new_token_counts, percentile

BLOCK_LEN = 4


def request(
    blocks: tuple[int, ...], session: str = "", at_s: float = 0.0, ended_s: float | None = None
) -> TracedRequest:
    arrived = Arrived(
        at_s=at_s, request="r", session=session, prompt_len=max(1, len(blocks) * BLOCK_LEN), blocks=blocks
    )
    return TracedRequest(arrived, Ended(at_s=ended_s, request="r", output_len=1))


prompts = st.lists(st.lists(st.integers(0, 9), max_size=5, unique=True).map(tuple), max_size=12)


@given(prompts, st.integers(0, 8))
def test_hits_are_those_of_a_list_that_forgets_its_head(told: list[tuple[int, ...]], room: int) -> None:
    cache: list[int] = []
    num_hit = num_tokens = 0
    for blocks in told:
        found = 0
        while found < len(blocks) and blocks[found] in cache:
            found += 1
        length = max(1, len(blocks) * BLOCK_LEN)
        num_hit += min(found * BLOCK_LEN, length - 1)
        num_tokens += length
        cache = [each for each in cache if each not in blocks] + list(reversed(blocks))
        cache = cache[max(0, len(cache) - room) :]
    expected = num_hit / num_tokens if num_tokens else 0.0
    assert hit_rate([request(each) for each in told], BLOCK_LEN, room * BLOCK_LEN).rate == expected


def test_hits_without_bound() -> None:
    told = [request((1, 2)), request((1, 2, 3)), request((9, 2))]
    assert hit_rate(told, BLOCK_LEN, None).rate == 8 / (8 + 12 + 8)


def test_new_tokens_are_counted_within_a_session() -> None:
    told = [request((1, 2), "a"), request((7,), "b"), request((1, 2, 3), "a"), request((1, 9), "a"), request((1,))]
    assert new_token_counts(told, BLOCK_LEN) == [4, 4]


def test_concurrency_counts_who_is_open() -> None:
    told = [request((), at_s=0, ended_s=2), request((), at_s=1, ended_s=3), request((), at_s=2), request((), "", 3, 4)]
    assert concurrency(told) == [(0, 1), (1, 2), (2, 1), (3, 1), (4, 0)]


@given(st.lists(st.integers(), min_size=1), st.floats(0, 1))
def test_a_percentile_is_the_least_value_with_enough_at_or_below(values: list[int], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(each <= found for each in values) >= share * len(values)
    assert sum(each < found for each in values) < max(1, share * len(values))


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="values"):
        percentile([], 0.5)
