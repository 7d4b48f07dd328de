from lineclear.base.ids import SequenceId
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.sequence import Sequence


def make_sequence(**sampling: object) -> Sequence:
    return Sequence(SequenceId(1), [5, 6, 7], SamplingParams(**{"max_tokens": 10, **sampling}))


def test_tokens_are_prompt_outputs_and_drafts_in_this_order() -> None:
    sequence = make_sequence()
    sequence.append([8, 9])
    sequence.draft_token_ids = [1, 2, 3]
    assert (sequence.num_prompt_tokens, sequence.num_tokens) == (3, 5)
    assert sequence.prompt_token_ids == [5, 6, 7]
    assert sequence.output_token_ids == [8, 9]
    assert sequence.token_ids(0, 5) == [5, 6, 7, 8, 9]
    assert sequence.token_ids(2, 4) == [7, 8]
    assert sequence.token_ids(4, 7) == [9, 1, 2]
    assert sequence.token_ids(5, 8) == [1, 2, 3]
    assert sequence.token_ids(6, 8) == [2, 3]


def test_the_models_limits_narrow_what_was_asked_for() -> None:
    sequence = make_sequence(stop_token_ids=(4,))
    sequence.narrow(max_model_len=9, eos_token_ids=frozenset({2}))
    assert sequence.token_limit == 9
    assert sequence.end_token_ids == {2, 4}


def test_a_short_wish_stays_and_eos_may_be_ignored() -> None:
    sequence = make_sequence(stop_token_ids=(4,), ignore_eos=True)
    sequence.narrow(max_model_len=100, eos_token_ids=frozenset({2}))
    assert sequence.token_limit == 13
    assert sequence.end_token_ids == {4}
