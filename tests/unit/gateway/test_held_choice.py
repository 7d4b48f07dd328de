"""What is held back, released, sent and forgotten of a choice: what was sent stays a prefix of what comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineclear.gateway.choice import AnswerFormat
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.errors import GenerationError
from lineclear.gateway.held_choice import HeldChoice, ReleasedDelta
from lineclear.protocol.wire import SequenceOutput
from tests.unit.gateway.test_choice import ANSWER, CHAT, TOKENIZATION, encode, outputs_of, spell_out

CUTS = st.lists(st.integers(0, 400), max_size=30)
ANSWERS = st.sampled_from([encode(ANSWER), spell_out(ANSWER)])


def hold(num_holdback_tokens: int, answer_format: AnswerFormat = CHAT) -> HeldChoice:
    return HeldChoice(TOKENIZATION.vocabulary, answer_format, num_holdback_tokens)


def collect(released: list[ReleasedDelta]) -> CollectedChoice:
    collected = CollectedChoice()
    for each in released:
        collected.add(each.delta)
    return collected


def told(collected: CollectedChoice) -> tuple[str, str, list[tuple[str, str, bool]]]:
    calls = [(call.name, call.arguments, call.is_complete) for call in collected.tool_calls]
    return collected.reasoning, collected.content, calls


@given(ANSWERS, CUTS, st.integers(0, 500), st.booleans())
def test_the_whole_answer_is_released_once_whatever_is_held(
    token_ids: list[int], cuts: list[int], num_holdback_tokens: int, has_logprobs: bool
) -> None:
    outputs = outputs_of(token_ids, cuts, has_logprobs=has_logprobs)
    at_once, later = hold(0), hold(num_holdback_tokens)
    first = [each for output in outputs for each in at_once.push(output)]
    second = [each for output in outputs for each in later.push(output)]
    assert first == second
    assert collect(second) == later.collected == at_once.collected
    assert sum(each.num_tokens for each in second) == len(token_ids)
    assert later.is_finished


@given(ANSWERS, CUTS, st.integers(0, 500))
def test_until_the_ending_so_many_tokens_come_after_what_is_released_and_no_more_than_needed(
    token_ids: list[int], cuts: list[int], num_holdback_tokens: int
) -> None:
    held = hold(num_holdback_tokens)
    num_computed = num_released = 0
    outputs = outputs_of(token_ids, cuts)
    longest = max(len(output.token_ids) for output in outputs)
    for output in outputs:
        num_computed += len(output.token_ids)
        num_released += sum(each.num_tokens for each in held.push(output))
        if held.is_finished:
            assert num_released == num_computed
        else:
            num_kept = num_computed - num_released
            assert num_kept >= min(num_computed, num_holdback_tokens)
            assert num_kept == 0 or num_kept < num_holdback_tokens + longest


def test_without_holdback_nothing_waits() -> None:
    held = hold(0)
    for output in outputs_of(encode(ANSWER), range(100)):
        assert len(held.push(output)) == 1


def test_a_delta_waits_for_exactly_as_many_tokens() -> None:
    held = hold(3, AnswerFormat())
    releases = [held.push(SequenceOutput(sequence_id=1, token_ids=encode(letter))) for letter in "abcdef"]
    assert [collect(each).content for each in releases] == ["", "", "", "a", "b", "c"]
    last = held.push(SequenceOutput(sequence_id=1, finish_reason="stop"))
    assert collect(last).content == "def"
    assert last[-1].delta.finish_reason == "stop"


def test_a_stop_string_is_seen_at_once_and_releases_everything() -> None:
    held = hold(50, AnswerFormat(stop_strings=("X",)))
    assert held.push(SequenceOutput(sequence_id=1, token_ids=encode("ab"))) == []
    released = held.push(SequenceOutput(sequence_id=1, token_ids=encode("cXd")))
    assert collect(released).content == "abc"
    assert held.is_finished
    assert held.push(SequenceOutput(sequence_id=1, finish_reason="cancelled")) == []


def test_an_error_of_the_worker_is_raised() -> None:
    with pytest.raises(GenerationError, match="no room"):
        hold(5).push(SequenceOutput(sequence_id=1, finish_reason="error", error="no room"))


@given(ANSWERS, CUTS, CUTS, CUTS, st.integers(0, 60), st.data())
def test_what_was_sent_is_continued_without_a_change(
    token_ids: list[int],
    cuts: list[int],
    wrong_cuts: list[int],
    later_cuts: list[int],
    num_held: int,
    data: st.DataObject,
) -> None:
    """The first attempt goes wrong after some right tokens; what is sent of it and the second one are the answer."""
    at_once = hold(0)
    whole = [each for output in outputs_of(token_ids, []) for each in at_once.push(output)]
    num_right = data.draw(st.integers(0, len(token_ids) - 1))
    held = hold(num_held)
    released: list[ReleasedDelta] = []
    sent: list[ReleasedDelta] = []
    for output in outputs_of(token_ids[:num_right], cuts)[:-1]:
        released += held.push(output)
        if data.draw(st.booleans()):  # else it is not written before the verdict comes
            held.mark_sent()
            sent = list(released)
    for output in outputs_of(encode("zzz"), wrong_cuts)[:-1]:
        held.push(output)
    num_unsent = held.num_unsent_tokens
    sent_ids = held.go_back()
    assert sent_ids == token_ids[: len(sent_ids)]
    assert len(sent_ids) == sum(each.num_tokens for each in sent)
    assert num_unsent >= held.num_unsent_tokens == 0
    assert told(held.collected) == told(collect(sent))
    rest = outputs_of(token_ids[len(sent_ids) :], later_cuts)
    later = [each for output in rest for each in held.push(output)]
    assert told(collect([*sent, *later])) == told(held.collected) == told(collect(whole))
    assert held.assembler.num_tokens == at_once.assembler.num_tokens
    assert held.assembler.num_reasoning_tokens == at_once.assembler.num_reasoning_tokens
