"""What a worker is thought to have cached."""

from hypothesis import given
from hypothesis import strategies as st

from lineclear.routing.sketch import MAX_PIECES, PIECE_TOKENS, PrefixSketch, piece_names


def prompt(*pieces: int) -> list[int]:
    """Tokens of whole pieces, each of one kind."""
    return [piece for piece in pieces for _ in range(PIECE_TOKENS)]


def test_a_name_says_all_that_comes_before_it() -> None:
    first, second = piece_names(prompt(1, 2))
    assert piece_names(prompt(1)) == (first,)
    assert piece_names(prompt(3, 2))[1] != second
    assert piece_names(prompt(1, 2)[:-1]) == (first,)
    assert piece_names([]) == ()


def test_the_longest_prefix_that_was_sent_is_found() -> None:
    sketch = PrefixSketch(100 * PIECE_TOKENS)
    sketch.add(piece_names(prompt(1, 2, 3)))
    assert sketch.num_cached_tokens(piece_names(prompt(1, 2, 3, 4))) == 3 * PIECE_TOKENS
    assert sketch.num_cached_tokens(piece_names(prompt(1, 2, 9))) == 2 * PIECE_TOKENS
    assert sketch.num_cached_tokens(piece_names(prompt(9, 2, 3))) == 0
    assert sketch.num_cached_tokens(()) == 0


def test_what_was_sent_longest_ago_is_forgotten_from_its_end() -> None:
    sketch = PrefixSketch(4 * PIECE_TOKENS)
    sketch.add(piece_names(prompt(1, 2, 3)))
    sketch.add(piece_names(prompt(8, 9)))
    assert sketch.num_cached_tokens(piece_names(prompt(1, 2, 3))) == 2 * PIECE_TOKENS
    assert sketch.num_cached_tokens(piece_names(prompt(8, 9))) == 2 * PIECE_TOKENS


def test_a_prompt_that_is_used_again_is_kept() -> None:
    sketch = PrefixSketch(3 * PIECE_TOKENS)
    sketch.add(piece_names(prompt(1)))
    for other in range(10, 20):
        sketch.add(piece_names(prompt(other)))
        sketch.add(piece_names(prompt(1)))
    assert sketch.num_cached_tokens(piece_names(prompt(1))) == PIECE_TOKENS


def test_a_prompt_that_was_given_up_is_not_found() -> None:
    sketch = PrefixSketch(100 * PIECE_TOKENS)
    sketch.add(piece_names(prompt(1, 2)))
    sketch.add(piece_names(prompt(5)))
    sketch.forget(piece_names(prompt(1, 7)))
    assert sketch.num_cached_tokens(piece_names(prompt(1, 2))) == 0
    assert sketch.num_cached_tokens(piece_names(prompt(5))) == PIECE_TOKENS


def test_a_cache_of_any_size_has_a_bounded_sketch() -> None:
    assert PrefixSketch(10**12).capacity == MAX_PIECES
    assert PrefixSketch(1).capacity == 1


@given(st.integers(1, 12), st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=25))
def test_what_is_said_to_be_cached_was_sent(capacity: int, prompts: list[list[int]]) -> None:
    sketch = PrefixSketch(capacity * PIECE_TOKENS)
    sent: list[tuple[int, ...]] = []
    for pieces in prompts:
        names = piece_names(prompt(*pieces))
        num_pieces = sketch.num_cached_tokens(names) // PIECE_TOKENS
        assert not num_pieces or any(each[:num_pieces] == tuple(pieces[:num_pieces]) for each in sent)
        sketch.add(names)
        sent.append(tuple(pieces))
        sketch.check()
        assert sketch.num_cached_tokens(names) == min(len(pieces), capacity) * PIECE_TOKENS
