from collections.abc import Callable

import pytest

from lineclear.base.errors import InvariantError
from lineclear.base.ids import SequenceId
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.queues import Queues
from lineclear.schedule.sequence import Sequence, SequenceState


def queued(count: int) -> tuple[Queues, list[Sequence]]:
    queues = Queues()
    sequences = [Sequence(SequenceId(10 + index), [1, 2], SamplingParams(max_tokens=1)) for index in range(count)]
    for sequence in sequences:
        queues.add(sequence)
    return queues, sequences


def test_whoever_is_preempted_waits_in_its_old_place() -> None:
    queues, (first, second, third) = queued(3)
    queues.admit(first)
    queues.admit(third)
    queues.admit(second)
    assert queues.running == [first, second, third]
    queues.preempt(second)
    queues.preempt(first)
    second.draft_token_ids = []
    assert (queues.waiting, queues.running) == ([first, second], [third])
    assert (queues.num_preemptions, first.num_preemptions, third.num_preemptions) == (2, 1, 0)
    queues.check()


def test_drafts_do_not_outlive_a_preemption() -> None:
    queues, (sequence,) = queued(1)
    queues.admit(sequence)
    sequence.draft_token_ids = [1, 2]
    queues.preempt(sequence)
    assert sequence.draft_token_ids == []


def test_a_prompt_counts_at_its_first_admission_only() -> None:
    queues, (sequence,) = queued(1)
    sequence.num_computed_tokens = 1
    queues.admit(sequence)
    queues.preempt(sequence)
    sequence.num_computed_tokens = 2
    queues.admit(sequence)
    assert (queues.num_prompt_tokens, queues.num_cached_prompt_tokens, sequence.num_cached_tokens) == (2, 1, 1)


def test_a_sequence_ends_once_from_either_queue() -> None:
    queues, (first, second) = queued(2)
    queues.admit(first)
    for sequence in (first, second):
        queues.end(sequence)
        assert sequence.state is SequenceState.FINISHED
        assert queues.get(sequence.sequence_id) is None
        with pytest.raises(InvariantError, match="ends twice"):
            queues.end(sequence)
    assert len(queues) == 0
    queues.check()


def test_a_sequence_is_added_once() -> None:
    queues, (sequence,) = queued(1)
    with pytest.raises(InvariantError, match="added twice"):
        queues.add(sequence)
    queues.end(sequence)
    with pytest.raises(InvariantError, match="added twice"):
        queues.add(sequence)


@pytest.mark.parametrize(
    "damage",
    [
        lambda queues: queues.waiting.reverse(),
        lambda queues: queues.waiting.pop(),
        lambda queues: queues.running.append(queues.waiting[0]),
        lambda queues: setattr(queues.running[0], "state", SequenceState.WAITING),
        lambda queues: queues.waiting[0].block_table.extend([1]),
    ],
    ids=["order", "lost", "both", "state", "blocks"],
)
def test_the_check_finds_each_kind_of_damage(damage: Callable[[Queues], object]) -> None:
    queues, sequences = queued(3)
    queues.admit(sequences[0])
    queues.check()
    damage(queues)
    with pytest.raises(InvariantError):
        queues.check()
