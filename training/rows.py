"""Training rows: windows of code and rendered edit tasks, with a weight for every token.

Shapes: B rows of T tokens. `weights[b, i]` is the weight of predicting `tokens[b, i]` from what stands before it.
"""

import json
import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from torch import Tensor

from lineclear.bundled import checkpoint_path
from lineclear.bundled.corpus import load_corpus
from lineclear.bundled.edit_tasks import EditTask, generate

# What is asked for and shown in a prompt is random and cannot be predicted; its gradient would be noise.
PROMPT_WEIGHT = 0.01
CODE_WEIGHT = 0.3
HARD_WEIGHT = 6.0
AFTER_HARD_WEIGHT = 3.0  # for the three tokens after a hard one, where copying has to find its place again
# The kinds in the share that learning them takes, not that in which they are asked.
TRAINING_SHARES = {
    "rename": 0.36,
    "insert": 0.09,
    "delete": 0.16,
    "reorder": 0.16,
    "tool_write": 0.15,
    "lookup": 0.05,
    "tool_read": 0.03,
}
LONGEST_MATCH = 8
TOOL_KINDS = ("tool_write", "tool_read")
SHORTEST_TOOL_ROW = 340


@dataclass(frozen=True)
class Row:
    """One tokenised row: the answer starts at `answer_start`; `hard` marks tokens that plain copying gets wrong."""

    tokens: list[int]
    answer_start: int
    hard: list[bool]


@dataclass(frozen=True)
class Batch:
    """Tokens and weights [B,T]; `answers` [B,T] marks answer tokens, `hard` those that plain copying gets wrong."""

    tokens: Tensor
    weights: Tensor
    answers: Tensor
    hard: Tensor


class Codec:
    """Tokenizer and chat template of the checkpoint directory."""

    def __init__(self, directory: Path | None = None) -> None:
        directory = directory or checkpoint_path()
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        self.template = environment.from_string((directory / "chat_template.jinja").read_text())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in which special tokens may stand."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: list[int]) -> str:
        """The text of token ids, special tokens included."""
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> list[int]:
        """Token ids of a rendered chat with the generation prompt at its end."""
        return self.encode(self.template.render(messages=messages, tools=tools, add_generation_prompt=True))

    @cached_property
    def end_of_text(self) -> int:
        """The token that ends a document."""
        return self.tokenizer.token_to_id("<|endoftext|>")

    @cached_property
    def newline(self) -> int:
        """The token of a bare newline."""
        return self.tokenizer.token_to_id("Ċ")

    @cached_property
    def indented_newline(self) -> int:
        """The token between two lines of a shown file, which answers write as a bare newline."""
        return self.tokenizer.token_to_id("ĊĠĠĠĠ")

    def row(self, task: EditTask) -> Row:
        """Prompt, answer and the end token that hands over to the user or to the tool."""
        prompt = self.prompt(task.messages, task.tools)
        end = "<|observation|>" if task.tools else "<|user|>"
        tokens = [*prompt, *self.encode(task.answer_text), self.tokenizer.token_to_id(end)]
        flat = [self.newline if token == self.indented_newline else token for token in tokens]
        return Row(tokens, len(prompt), hard_tokens(flat, len(prompt)))


def hard_tokens(tokens: list[int], start: int) -> list[bool]:
    """Marks tokens from `start` on that differ from what followed the longest, latest match of the tokens before."""
    followers: dict[tuple[int, ...], int] = {}
    hard = [False] * len(tokens)
    for idx, token in enumerate(tokens):
        contexts = [tuple(tokens[idx - length : idx]) for length in range(min(LONGEST_MATCH, idx), 0, -1)]
        if idx >= start:
            guess = next((followers[context] for context in contexts if context in followers), None)
            hard[idx] = guess != token
        followers.update(dict.fromkeys(contexts, token))
    return hard


class RowSource:
    """Draws batches from one seeded stream."""

    def __init__(self, codec: Codec, seed: int) -> None:
        self.codec = codec
        self.rng = random.Random(seed)
        self.code = _code_tokens(codec, load_corpus().train)

    def batch(self, num_rows: int, num_tokens: int, code_share: float) -> Batch:
        """`num_rows` rows padded to `num_tokens`; at least one edit row, and on average `code_share` of code."""
        num_code = min(int(num_rows * code_share + self.rng.random()), num_rows - 1)
        rows = [self._edit_row(num_tokens) for _ in range(num_rows - num_code)]
        tokens = torch.full((num_rows, num_tokens), self.codec.end_of_text)
        weights, answers, hard = torch.zeros(3, num_rows, num_tokens)
        for idx, row in enumerate(rows):
            end, start = len(row.tokens), row.answer_start
            tokens[idx, :end] = torch.tensor(row.tokens)
            hard[idx, :end] = torch.tensor(row.hard).float()
            answers[idx, start:end] = 1.0
            weights[idx, 1:start] = PROMPT_WEIGHT
        after = torch.nn.functional.max_pool1d(torch.nn.functional.pad(hard, (3, 0)), 4, stride=1)
        weights += answers * (1.0 + (AFTER_HARD_WEIGHT - 1.0) * after + (HARD_WEIGHT - AFTER_HARD_WEIGHT) * hard)
        for idx in range(len(rows), num_rows):
            start = self.rng.randrange(len(self.code) - num_tokens)
            tokens[idx] = self.code[start : start + num_tokens]
            weights[idx, 1:] = CODE_WEIGHT
        return Batch(tokens, weights, answers, hard)

    def _edit_row(self, num_tokens: int) -> Row:
        target = int(num_tokens * self.rng.uniform(0.65, 0.93))
        while True:
            kind = self.rng.choices(list(TRAINING_SHARES), weights=list(TRAINING_SHARES.values()))[0]
            if num_tokens < SHORTEST_TOOL_ROW and kind in TOOL_KINDS:
                continue
            task = generate(self.rng.randrange(1 << 32), kind=kind, target_tokens=max(target, 150))
            row = self.codec.row(task)
            if len(row.tokens) <= num_tokens:
                return row
            target = int(target * 0.93)


def _code_tokens(codec: Codec, texts: tuple[str, ...]) -> Tensor:
    """All files' tokens in one tensor, each file after an end-of-text token."""
    tokens: list[int] = []
    for text in texts:
        tokens.append(codec.end_of_text)
        tokens.extend(codec.encode(text))
    return torch.tensor(tokens)
