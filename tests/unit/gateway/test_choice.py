"""A choice from its tokens: the same answer however the worker's steps fall."""

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lineclear.gateway.choice import AnswerFormat, ChoiceAssembler
from lineclear.gateway.collected import CollectedChoice
from lineclear.gateway.errors import GenerationError
from lineclear.gateway.fragments import Content, Marker, Reasoning
from lineclear.gateway.tokenization import Tokenization
from lineclear.protocol.drafts import DraftCounts
from lineclear.protocol.wire import SequenceOutput, TokenLogprobs
from tests.unit.gateway.tiny_text import WEATHER_TOOL, build_tokenizer

TOKENIZATION = Tokenization(build_tokenizer())
WITHOUT_MARKERS = Tokenization(build_tokenizer(has_markers=False))
CHAT = AnswerFormat(interprets_tags=True, starts_thinking=True, tools=(WEATHER_TOOL,))
PARROT = "\U0001f99c"
ANSWER = (
    f"thinking{PARROT}</think>I will look.\n<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris {PARROT}"
    "</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>\n"
)


def encode(text: str, tokenization: Tokenization = TOKENIZATION) -> list[int]:
    return tokenization.encode_prompt(text, add_special_tokens=False)


def spell_out(text: str) -> list[int]:
    """The text as single bytes, with tags as tags."""
    token_ids: list[int] = []
    vocabulary = TOKENIZATION.vocabulary
    single = {vocabulary.token_bytes(token_id): token_id for token_id in reversed(range(vocabulary.size))}
    for token_id in encode(text):
        if token_id in vocabulary.control_tokens:
            token_ids.append(token_id)
        else:
            token_ids += [single[bytes([value])] for value in vocabulary.token_bytes(token_id)]
    return token_ids


def outputs_of(
    token_ids: Sequence[int], cuts: Sequence[int], finish_reason: str = "stop", *, has_logprobs: bool = False
) -> list[SequenceOutput]:
    borders = sorted({0, len(token_ids), *(cut % (len(token_ids) + 1) for cut in cuts)})
    steps = [list(token_ids[start:end]) for start, end in itertools.pairwise(borders)] or [[]]
    return [
        SequenceOutput(
            sequence_id=1,
            token_ids=step,
            logprobs=[TokenLogprobs(token_id=token_id, logprob=-1.0) for token_id in step] if has_logprobs else None,
            finish_reason=finish_reason if idx == len(steps) - 1 else None,
        )
        for idx, step in enumerate(steps)
    ]


def assemble(
    outputs: list[SequenceOutput], answer_format: AnswerFormat, tokenization: Tokenization = TOKENIZATION
) -> CollectedChoice:
    assembler = ChoiceAssembler(tokenization.vocabulary, answer_format)
    collected = CollectedChoice()
    for output in outputs:
        collected.add(assembler.push(output))
    assert assembler.is_finished
    return collected


def test_reasoning_text_and_call_come_apart() -> None:
    answer = assemble(outputs_of(encode(ANSWER), []), CHAT)
    assert answer.reasoning == f"thinking{PARROT}"
    assert answer.content == "I will look."
    [call] = answer.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": f"Paris {PARROT}", "days": 3})
    assert answer.finish_reason == "tool_calls"


@given(cuts=st.lists(st.integers(0, 400), max_size=20))
@example(cuts=list(range(400)))
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("num_tokens", [None, -1, -9, -20])
def test_steps_may_fall_anywhere(cuts: list[int], finish_reason: str, num_tokens: int | None) -> None:
    token_ids = spell_out(ANSWER)[:num_tokens]
    assert assemble(outputs_of(token_ids, cuts, finish_reason), CHAT) == assemble(
        outputs_of(token_ids, [], finish_reason), CHAT
    )


@given(cuts=st.lists(st.integers(0, 400), max_size=20))
@example(cuts=list(range(400)))
def test_tags_without_tokens_of_their_own_are_found_in_the_text(cuts: list[int]) -> None:
    answer = assemble(outputs_of(encode(ANSWER, WITHOUT_MARKERS), cuts), CHAT, WITHOUT_MARKERS)
    assert answer == assemble(outputs_of(encode(ANSWER), []), CHAT)


def test_a_tag_spelled_as_text_is_text() -> None:
    token_ids = [*encode("</think>"), *TOKENIZATION.encode_text("<tool_call>get_weather</tool_call>")]
    answer = assemble(outputs_of(token_ids, []), CHAT)
    assert (answer.content, answer.tool_calls) == ("<tool_call>get_weather</tool_call>", [])


def test_without_tools_nothing_looks_for_calls() -> None:
    text = "<tool_call>get_weather</tool_call>"
    answer = assemble(outputs_of(encode(text), []), AnswerFormat(interprets_tags=True))
    assert (answer.content, answer.finish_reason) == (text, "stop")


def test_plain_completions_show_tags_and_hide_special_tokens_unless_asked() -> None:
    token_ids = encode("a<think>b<|user|>c")
    assert assemble(outputs_of(token_ids, []), AnswerFormat()).content == "a<think>bc"
    shown = AnswerFormat(skip_special_tokens=False)
    assert assemble(outputs_of(token_ids, []), shown).content == "a<think>b<|user|>c"


def test_tags_stay_visible_where_nothing_interprets_them_even_if_the_tokenizer_calls_them_special() -> None:
    tokenizer_json = build_tokenizer().replace(b'"special":false', b'"special":true')
    tokenization = Tokenization(tokenizer_json)
    token_ids = tokenization.encode_prompt("<tool_call>x", add_special_tokens=False)
    assert assemble(outputs_of(token_ids, []), AnswerFormat(), tokenization).content == "<tool_call>x"


def test_a_text_that_ends_inside_a_character_shows_it_once() -> None:
    token_ids = spell_out(f"a{PARROT}")[:-1]
    assert assemble(outputs_of(token_ids, [], "length"), AnswerFormat()).content == "a�"


def test_a_special_token_ends_a_broken_character() -> None:
    token_ids = [*spell_out(PARROT)[:2], *encode("<|user|>b")]
    assert assemble(outputs_of(token_ids, []), AnswerFormat()).content == "�b"


@given(cuts=st.lists(st.integers(0, 60), max_size=12))
@example(cuts=list(range(60)))
def test_stop_strings_end_the_choice_wherever_steps_fall(cuts: list[int]) -> None:
    answer_format = AnswerFormat(stop_strings=("\nUser:", "END"))
    outputs = outputs_of(spell_out("fine\nUs\nUser: and more END"), cuts)
    answer = assemble(outputs, answer_format)
    assert (answer.content, answer.finish_reason, answer.stop_reason) == ("fine\nUs", "stop", "\nUser:")


def test_a_possible_stop_string_is_sent_when_the_answer_ends() -> None:
    answer = assemble(outputs_of(encode("fine\nUs"), [], "length"), AnswerFormat(stop_strings=("\nUser:",)))
    assert (answer.content, answer.finish_reason, answer.stop_reason) == ("fine\nUs", "length", None)


def test_stop_strings_are_looked_for_in_the_answer_only() -> None:
    answer_format = AnswerFormat(
        stop_strings=("Paris", "thinking"), interprets_tags=True, starts_thinking=True, tools=(WEATHER_TOOL,)
    )
    assert assemble(outputs_of(encode(ANSWER), []), answer_format).finish_reason == "tool_calls"


def test_a_stop_string_does_not_span_a_tool_call() -> None:
    text = "ab<tool_call>get_weather</tool_call>cd"
    answer_format = AnswerFormat(stop_strings=("bc",), interprets_tags=True, tools=(WEATHER_TOOL,))
    answer = assemble(outputs_of(encode(text), []), answer_format)
    assert (answer.content, len(answer.tool_calls)) == ("abcd", 1)


def test_stop_strings_wait_for_the_least_number_of_tokens() -> None:
    token_ids = spell_out("a.b.c")
    answer = assemble(outputs_of(token_ids, []), AnswerFormat(stop_strings=(".",), min_tokens=2))
    assert answer.content == "a.b"


def test_one_call_is_enough_where_only_one_is_wanted() -> None:
    call = "<tool_call>get_weather</tool_call>"
    answer_format = AnswerFormat(interprets_tags=True, tools=(WEATHER_TOOL,), single_call=True)
    assembler = ChoiceAssembler(TOKENIZATION.vocabulary, answer_format)
    delta = assembler.push(SequenceOutput(sequence_id=1, token_ids=encode(call + call)))
    collected = CollectedChoice()
    collected.add(delta)
    assert (len(collected.tool_calls), delta.finish_reason) == (1, "tool_calls")


def test_a_call_that_is_cut_off_ends_with_length_and_no_markup() -> None:
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Par"
    answer = assemble(outputs_of(encode(text), [], "length"), AnswerFormat(interprets_tags=True, tools=(WEATHER_TOOL,)))
    assert (answer.content, answer.finish_reason) == ("", "length")
    assert answer.tool_calls[0].arguments == '{"city": "Par'


def test_a_choice_that_the_model_ends_inside_a_call_does_not_claim_the_call() -> None:
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Par"
    answer = assemble(outputs_of(encode(text), []), AnswerFormat(interprets_tags=True, tools=(WEATHER_TOOL,)))
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("reason", ["error", "cancelled"])
def test_an_ending_that_nobody_asked_for_is_an_error(reason: str) -> None:
    assembler = ChoiceAssembler(TOKENIZATION.vocabulary, AnswerFormat())
    error = "out of blocks" if reason == "error" else None
    with pytest.raises(GenerationError):
        assembler.push(SequenceOutput(sequence_id=1, finish_reason=reason, error=error))


def test_what_follows_the_ending_is_ignored_but_for_the_drafts() -> None:
    assembler = ChoiceAssembler(TOKENIZATION.vocabulary, AnswerFormat(stop_strings=("b",)))
    first = assembler.push(SequenceOutput(sequence_id=1, token_ids=encode("ab")))
    assert (first.parts, first.finish_reason) == ([Content("a")], "stop")
    counts = DraftCounts(num_verifies=2, proposed_by_position=[2], accepted_by_position=[1])
    later = assembler.push(
        SequenceOutput(sequence_id=1, token_ids=encode("c"), finish_reason="cancelled", draft=counts)
    )
    assert (later.parts, later.finish_reason) == ([], None)
    assert assembler.draft == counts


def test_tokens_are_counted_up_to_the_ending_and_reasoning_apart() -> None:
    assembler = ChoiceAssembler(TOKENIZATION.vocabulary, CHAT)
    thought, said = spell_out("hm</think>"), spell_out("ok")
    assembler.push(SequenceOutput(sequence_id=1, token_ids=[*thought, *said], num_cached_tokens=16))
    assert (assembler.num_tokens, assembler.num_reasoning_tokens) == (len(thought) + len(said), len(thought))
    assert assembler.num_cached_tokens == 16


def test_the_token_that_ends_a_choice_is_reported() -> None:
    assembler = ChoiceAssembler(TOKENIZATION.vocabulary, AnswerFormat())
    delta = assembler.push(SequenceOutput(sequence_id=1, finish_reason="stop", stop_token_id=4))
    assert (delta.finish_reason, delta.stop_reason) == ("stop", 4)
    assert assembler.num_tokens == 1


def test_a_token_that_comes_after_the_ending_does_not_count() -> None:
    assembler = ChoiceAssembler(TOKENIZATION.vocabulary, AnswerFormat(stop_strings=("b",)))
    assembler.push(SequenceOutput(sequence_id=1, token_ids=encode("b")))
    assembler.push(SequenceOutput(sequence_id=1, finish_reason="stop", stop_token_id=4))
    assert assembler.num_tokens == 1


@given(cuts=st.lists(st.integers(0, 200), max_size=12))
@example(cuts=list(range(200)))
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_every_token_has_its_log_probability_once_and_in_order(cuts: list[int], finish_reason: str) -> None:
    token_ids = spell_out(ANSWER)
    answer = assemble(outputs_of(token_ids, cuts, finish_reason, has_logprobs=True), CHAT)
    assert [token.logprobs.token_id for token in answer.logprobs] == token_ids


@given(cuts=st.lists(st.integers(0, 60), max_size=12))
@example(cuts=list(range(60)))
def test_log_probabilities_end_with_the_text(cuts: list[int]) -> None:
    token_ids = spell_out(f"fi{PARROT}ne\nUser: and more")
    answer_format = AnswerFormat(stop_strings=("\nUser:",))
    answer = assemble(outputs_of(token_ids, cuts, has_logprobs=True), answer_format)
    assert [token.logprobs.token_id for token in answer.logprobs] == spell_out(f"fi{PARROT}ne")


@given(cuts=st.lists(st.integers(0, 60), max_size=12))
@example(cuts=list(range(60)))
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_tokens_are_placed_in_the_text_that_is_shown(cuts: list[int], skip_special_tokens: bool) -> None:
    token_ids = spell_out(f"a<|user|>{PARROT}b<|assistant|>c")
    answer_format = AnswerFormat(skip_special_tokens=skip_special_tokens)
    answer = assemble(outputs_of(token_ids, cuts, has_logprobs=True), answer_format)
    texts = [answer.content[token.start : token.end] for token in answer.logprobs]
    hidden = ["", ""] if skip_special_tokens else ["<|user|>", "<|assistant|>"]
    assert texts == ["a", hidden[0], "", "", "", PARROT, "b", hidden[1], "c"]


def test_log_probabilities_wait_for_their_text() -> None:
    assembler = ChoiceAssembler(TOKENIZATION.vocabulary, AnswerFormat(stop_strings=("abc",)))
    token_ids = spell_out("xab")
    [output, _] = [*outputs_of(token_ids, [], has_logprobs=True), None]
    delta = assembler.push(SequenceOutput(sequence_id=1, token_ids=token_ids, logprobs=output.logprobs))
    assert [token.logprobs.token_id for token in delta.logprobs] == token_ids[:1]
    half = spell_out(PARROT)[:2]
    logprobs = [TokenLogprobs(token_id=token_id, logprob=-1.0) for token_id in half]
    delta = assembler.push(SequenceOutput(sequence_id=1, token_ids=half, logprobs=logprobs))
    assert delta.logprobs == []


def test_neighbouring_texts_are_one_part() -> None:
    assembler = ChoiceAssembler(TOKENIZATION.vocabulary, CHAT)
    delta = assembler.push(SequenceOutput(sequence_id=1, token_ids=spell_out("hm</think>ok")))
    assert delta.parts == [Reasoning("hm"), Content("ok")]


def test_markers_are_all_in_the_test_vocabulary() -> None:
    assert all(TOKENIZATION.vocabulary.control_id(marker.value) is not None for marker in Marker)
