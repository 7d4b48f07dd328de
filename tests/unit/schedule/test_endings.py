import pytest

from lineclear.base.ids import SequenceId
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.endings import Ending, find_ending
from lineclear.schedule.sequence import Sequence

EOS = 0


def make_sequence(num_output: int = 0, max_model_len: int = 100, **sampling: object) -> Sequence:
    sequence = Sequence(SequenceId(1), [5, 6, 7], SamplingParams(**{"max_tokens": 10, **sampling}))
    sequence.narrow(max_model_len, frozenset({EOS}))
    sequence.append([9] * num_output)
    return sequence


def test_ordinary_tokens_end_nothing() -> None:
    assert find_ending(make_sequence(), [8, 9]) is None


@pytest.mark.parametrize("token_ids", [[8, EOS], [8, EOS, 9], [8, EOS, EOS, 4]])
def test_the_first_end_token_cuts_what_comes_after_it_and_itself(token_ids: list[int]) -> None:
    assert find_ending(make_sequence(), token_ids) == Ending(1, "stop", EOS)


def test_a_stop_token_at_once_leaves_nothing() -> None:
    assert find_ending(make_sequence(stop_token_ids=(4,)), [4]) == Ending(0, "stop", 4)


def test_eos_may_be_ignored_but_stop_tokens_may_not() -> None:
    assert find_ending(make_sequence(ignore_eos=True, stop_token_ids=(4,)), [EOS, 4]) == Ending(1, "stop", 4)


def test_before_min_tokens_an_end_token_is_like_any_other() -> None:
    assert find_ending(make_sequence(min_tokens=2), [EOS, EOS]) is None
    assert find_ending(make_sequence(min_tokens=2), [EOS, EOS, EOS]) == Ending(2, "stop", EOS)
    assert find_ending(make_sequence(num_output=1, min_tokens=2), [EOS, EOS]) == Ending(1, "stop", EOS)
    assert find_ending(make_sequence(num_output=2, min_tokens=2), [EOS]) == Ending(0, "stop", EOS)


def test_max_tokens_ends_after_the_last_token() -> None:
    assert find_ending(make_sequence(num_output=8), [1]) is None
    assert find_ending(make_sequence(num_output=8), [1, 2]) == Ending(2, "length")
    assert find_ending(make_sequence(num_output=8), [1, 2, 3]) == Ending(2, "length")


def test_the_model_length_ends_it_too() -> None:
    assert find_ending(make_sequence(num_output=1, max_model_len=5), [1]) == Ending(1, "length")


def test_a_stop_token_as_the_last_possible_token_is_a_stop() -> None:
    assert find_ending(make_sequence(num_output=9), [EOS]) == Ending(0, "stop", EOS)
    assert find_ending(make_sequence(num_output=9), [1, EOS]) == Ending(1, "length")
