import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.base.errors import InvariantError
from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.testing.explorer import Violation
from lineclear.testing.handoff.blocks import Blocks, acquire, release, release_if_held, try_allocate

NUM_BLOCKS = 3
HOLDERS = st.builds(Holder, st.sampled_from([HolderKind.SEQUENCE, HolderKind.WRITER]), st.integers(0, 1))
CALLS = st.tuples(
    st.sampled_from(["allocate", "acquire", "release"]), st.lists(st.integers(0, NUM_BLOCKS - 1), unique=True), HOLDERS
)


@given(st.lists(CALLS, max_size=30))
def test_the_value_does_what_the_pool_does(calls: list[tuple[str, list[int], Holder]]) -> None:
    pool = BlockPool(NUM_BLOCKS)
    places: dict[int, int] = {}
    blocks: Blocks = (frozenset(),) * NUM_BLOCKS
    for call, block_ids, holder in calls:
        if call == "allocate":
            got, expected = try_allocate(blocks, len(block_ids), holder), pool.try_allocate(len(block_ids), holder)
            assert (got is None) == (expected is None)
            if got is not None and expected is not None:
                blocks = got[0]
                places |= dict(zip(got[1], expected, strict=True))
        else:
            blocks = _both(blocks, pool, places, call, tuple(block_ids), holder)
        places = {block_id: place for block_id, place in places.items() if blocks[block_id]}
        for block_id, holders in enumerate(blocks):
            assert holders == set(pool.holders(places[block_id]) if block_id in places else ())
    assert pool.num_free == sum(not holders for holders in blocks)


def _both(
    blocks: Blocks, pool: BlockPool, places: dict[int, int], call: str, block_ids: tuple[int, ...], holder: Holder
) -> Blocks:
    if any(not blocks[block_id] for block_id in block_ids):
        with pytest.raises(Violation):
            (acquire if call == "acquire" else release)(blocks, block_ids, holder)
        return blocks
    change, same = (acquire, pool.acquire) if call == "acquire" else (release, pool.release)
    try:
        after = change(blocks, block_ids, holder)
    except Violation:
        has = [holder in blocks[block_id] for block_id in block_ids]
        assert any(has) if call == "acquire" else not all(has)
        wrong = next(block_id for block_id, one in zip(block_ids, has, strict=True) if one == (call == "acquire"))
        with pytest.raises(InvariantError):
            same([places[wrong]], holder)
        return blocks
    same([places[block_id] for block_id in block_ids], holder)
    return after


def test_a_lenient_release_ends_the_holds_there_are() -> None:
    holder = Holder(HolderKind.WRITER, 1)
    other = Holder(HolderKind.SEQUENCE, 1)
    assert release_if_held((frozenset({holder, other}), frozenset()), (0, 1), holder) == (
        frozenset({other}),
        frozenset(),
    )
