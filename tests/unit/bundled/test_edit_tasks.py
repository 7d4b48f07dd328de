import json
import re

import pytest

from lineclear.bundled.edit_tasks import (
    HELD_OUT_FIRST_SEED,
    KIND_SHARES,
    WHOLE_FILE_KINDS,
    WORDS,
    EditTask,
    approximate_num_tokens,
    check,
    generate,
)

KINDS = sorted(KIND_SHARES)


def lines_of(text: str) -> list[str]:
    found = re.search(r"```\n(.*?)\n```", text, re.DOTALL)
    assert found is not None
    return found.group(1).split("\n")


def shown_file(task: EditTask) -> list[str]:
    return [line.removeprefix("    ") for line in lines_of(task.messages[-1]["content"])]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_arguments_give_the_same_task(kind: str) -> None:
    assert generate(7, kind=kind, target_tokens=400) == generate(7, kind=kind, target_tokens=400)
    assert generate(7, kind=kind, target_tokens=400) != generate(8, kind=kind, target_tokens=400)


def test_tasks_do_not_change_between_versions() -> None:
    task = generate(HELD_OUT_FIRST_SEED, kind="lookup", target_tokens=150)
    assert task.answer_text == "check = commands"


def test_kinds_are_drawn_by_share() -> None:
    kinds = [generate(seed, target_tokens=150).kind for seed in range(400)]
    for kind, share in KIND_SHARES.items():
        assert kinds.count(kind) / len(kinds) == pytest.approx(share / sum(KIND_SHARES.values()), abs=0.08)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", [400, 900, 1800])
def test_the_length_asked_for_is_met(kind: str, target: int) -> None:
    task = generate(3, kind=kind, target_tokens=target)
    num_tokens = approximate_num_tokens("".join(m["content"] for m in task.messages) + task.answer_text)
    num_tokens += 190 if task.tools else 0
    assert num_tokens == pytest.approx(target, rel=0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_right_answer_passes(kind: str) -> None:
    task = generate(11, kind=kind, target_tokens=400)
    assert check(task, task.answer_text)
    assert check(task, task.answer_message)
    assert not check(task, task.answer_text[:-4])
    assert not check(task, "")
    assert not check(task, {"role": "assistant", "content": "no"})


def test_tool_calls_pass_with_arguments_as_text_or_mapping() -> None:
    task = generate(5, kind="tool_read", target_tokens=400)
    function = task.answer_message["tool_calls"][0]["function"]
    arguments = json.loads(function["arguments"])
    message = {"tool_calls": [{"function": {"name": function["name"], "arguments": arguments}}]}
    assert check(task, message)
    assert not check(task, {"tool_calls": [{"function": {"name": "write_file", "arguments": arguments}}]})
    assert not check(task, {"content": task.answer_text})


@pytest.mark.parametrize("seed", range(40))
def test_edits_change_the_file_as_told(seed: int) -> None:
    rename = generate(seed, kind="rename", target_tokens=400)
    before, after = shown_file(rename), lines_of(rename.answer_text)
    found = re.search(r"(\w+) -> (\w+) ", rename.messages[-1]["content"])
    assert found is not None
    old, new = found.groups()
    assert after == [re.sub(rf"\b{old}\b", new, line) for line in before] != before
    told = rename.messages[-1]["content"].split("```")[-2].strip("\n").removesuffix(" ...").replace(" ...\n", "\n")
    changed = [line for line, was in zip(after, before, strict=True) if line != was]
    assert set(changed) <= set(told.split("\n")) <= set(after)

    insert = generate(seed, kind="insert", target_tokens=400)
    assert len(lines_of(insert.answer_text)) == len(shown_file(insert)) + 1
    assert [line for line in lines_of(insert.answer_text) if line in shown_file(insert)] == shown_file(insert)

    delete = generate(seed, kind="delete", target_tokens=400)
    assert [line for line in shown_file(delete) if line in lines_of(delete.answer_text)] == lines_of(delete.answer_text)
    assert len(lines_of(delete.answer_text)) < len(shown_file(delete))

    reorder = generate(seed, kind="reorder", target_tokens=400)
    assert sorted(lines_of(reorder.answer_text)) == sorted(shown_file(reorder))
    assert lines_of(reorder.answer_text) != shown_file(reorder)


@pytest.mark.parametrize("kind", KINDS)
def test_every_piece_of_the_answer_stands_in_the_prompt(kind: str) -> None:
    task = generate(2, kind=kind, target_tokens=500)
    prompt = "".join(m["content"] for m in task.messages) + json.dumps(task.tools)
    answer = re.sub(r"<[^>]*>", " ", task.answer_text)
    assert set(re.findall(r"[A-Za-z]+|\d", answer)) <= set(re.findall(r"[A-Za-z]+|\d", prompt))


def test_most_answers_repeat_the_whole_file() -> None:
    assert (
        sum(share for kind, share in KIND_SHARES.items() if kind in WHOLE_FILE_KINDS) / sum(KIND_SHARES.values()) > 0.8
    )


def test_the_word_list_has_no_word_twice() -> None:
    assert len(set(WORDS)) == len(WORDS)


@pytest.mark.parametrize(("kind", "target"), [("nonsense", 300), (None, 10), (None, 100_000)])
def test_impossible_arguments_are_refused(kind: str | None, target: int) -> None:
    with pytest.raises(ValueError, match=r"kind: |target_tokens: "):
        generate(0, kind=kind, target_tokens=target)
