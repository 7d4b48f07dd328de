"""Prompts rebuilt: equal ids are equal tokens, everything else differs."""

from hypothesis import given
from hypothesis import strategies as st

from lineclear.trace.events import Arrived
from lineclear.trace.prompts import PromptBuilder

BLOCK_LEN = 16


def build(request: str, blocks: tuple[int, ...], prompt_len: int) -> list[int]:
    arrived = Arrived(at_s=0, request=request, prompt_len=prompt_len, blocks=blocks)
    return PromptBuilder(BLOCK_LEN, 256, 1000).tokens(arrived)


blocks = st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple)


@given(blocks, blocks, blocks, st.integers(1, 40))
def test_what_is_shared_is_equal_and_nothing_else(
    shared: tuple[int, ...], one: tuple[int, ...], other: tuple[int, ...], tail: int
) -> None:
    left = build("a", shared + one, BLOCK_LEN * len(shared + one) + tail)
    right = build("b", shared + other, BLOCK_LEN * len(shared + other) + tail)
    num_shared = BLOCK_LEN * len(shared)
    assert left[:num_shared] == right[:num_shared]
    assert (len(left), min(left) >= 256, max(left) <= 1000) == (BLOCK_LEN * len(shared + one) + tail, True, True)
    if one and other and one[0] != other[0]:
        assert left[num_shared : num_shared + BLOCK_LEN] != right[num_shared : num_shared + BLOCK_LEN]


def test_a_short_last_block_is_the_beginning_of_its_block() -> None:
    assert build("a", (1, 2), 20) == build("b", (1, 2), 32)[:20]


def test_tokens_are_those_of_every_run() -> None:
    assert build("a", (7,), 18)[14:] == [392, 859, 972, 740]
