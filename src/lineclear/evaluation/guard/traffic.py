"""Healthy traffic for a model's baselines: edits of files, code that goes on, and lists that repeat themselves.

Edits are mostly long faithful copies, and lists repeat what their prompt shows: what must not be taken for a loop.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lineclear.bundled.corpus import load_corpus
from lineclear.bundled.edit_tasks import HELD_OUT_FIRST_SEED
from lineclear.bundled.edit_tasks import generate as generate_task
from lineclear.evaluation.bundled import prompt_token_ids
from lineclear.evaluation.generate import Prompt
from lineclear.gateway.served_model import TextAssets
from lineclear.protocol.sampling import SamplingParams

TRAFFIC_FIRST_SEED = HELD_OUT_FIRST_SEED + 1_000_000
"""Of edit tasks: none that the model was trained on, and none that figures are taken from."""

MAX_ANSWER_LEN = 512
CODE_PROMPT_LEN = 512
CODE_OUTPUT_LEN = 192
_LIST_LINES = ("    0.0,\n", "- [ ] todo\n", "0x00, 0x00, 0x00, 0x00,\n", "assert result == expected\n")
_LIST_REPEATS = 40
_NUM_FILES = 48
_CODE_STEP = 97


@dataclass(frozen=True)
class TrafficSize:
    """How many prompts of each kind there are, in each sampling mode."""

    num_edits: int = 160
    num_code: int = 64
    num_lists: int = 16


def healthy_prompts(
    assets: TextAssets, size: TrafficSize, *, temperature: float, first_number: int = 0
) -> list[Prompt]:
    """The prompts of one sampling mode.

    Args:
        assets: of the model; without a chat template there are no edits.
        size: how many.
        temperature: 0 for greedy.
        first_number: prompts with other numbers are others.
    """
    numbers = [range(first_number, first_number + count) for count in (size.num_edits, size.num_code, size.num_lists)]
    parts = [*_edits(assets, numbers[0]), *_code(assets, numbers[1]), *_lists(assets, numbers[2])]
    return [
        Prompt(tuple(token_ids), SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=number))
        for number, (token_ids, max_tokens) in enumerate(parts)
    ]


def _edits(assets: TextAssets, numbers: range) -> Iterator[tuple[list[int], int]]:
    if assets.template is not None:
        for number in numbers:
            yield prompt_token_ids(assets, generate_task(TRAFFIC_FIRST_SEED + number)), MAX_ANSWER_LEN


def _code(assets: TextAssets, numbers: range) -> Iterator[tuple[list[int], int]]:
    """Windows of held-out files, file after file, each time round a step further."""
    texts = sorted(load_corpus().held_out, key=len, reverse=True)[:_NUM_FILES]
    for number in numbers:
        tokens = assets.tokenization.encode_text(texts[number % len(texts)])
        start = number // len(texts) * _CODE_STEP % max(1, len(tokens) - CODE_PROMPT_LEN)
        yield list(tokens[start : start + CODE_PROMPT_LEN]), CODE_OUTPUT_LEN


def _lists(assets: TextAssets, numbers: range) -> Iterator[tuple[list[int], int]]:
    for number in numbers:
        line = _LIST_LINES[number % len(_LIST_LINES)]
        text = f"# {number}\n" + line * (_LIST_REPEATS + number % _LIST_REPEATS)
        yield list(assets.tokenization.encode_text(text)), CODE_OUTPUT_LEN
