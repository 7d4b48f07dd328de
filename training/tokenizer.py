"""Trains the tokenizer: byte-level BPE whose words do not depend on what stands next to them.

The pre-tokenizer cuts a text into newlines with their indentation, runs of blanks, single digits, single punctuation
marks (binary operators and commas take the single blanks around them) and runs of letters in one case. BPE merges
only inside such a piece, so an identifier has the same tokens wherever it stands. All 256 bytes are in the alphabet:
any text round-trips.

    python -m training.tokenizer --out DIR
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from lineclear.bundled.corpus import load_corpus
from lineclear.bundled.edit_tasks import generate

VOCAB_SIZE = 2048
SPECIAL_TOKENS = (
    "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<tool_response>", "</tool_response>",
)  # fmt: skip
# Rendered as markers inside text, so a decoder that skips special tokens must keep them (as GLM's tokenizers do).
PLAIN_ADDED = frozenset(SPECIAL_TOKENS[7:])
PIECES = "|".join(  # noqa: FLY002 (one alternative a line)
    (
        r"```",
        r"\n[ \t]*",
        r" (?:[-+*/%<>=!&|]=|\*\*|//|->|[-+*/%<>=&|@]) ",
        r"[,:] ",
        r"\p{Lu}?\p{Ll}+",
        r"\p{Lu}+(?!\p{Ll})",
        r"\p{L}",
        r"[ \t]+",
        r"[^\p{L} \t\n]",
    )
)
EDIT_TASK_TEXTS = 1500


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_visible_markers(tokenizer)


def _with_visible_markers(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with `PLAIN_ADDED` no longer special (the trainer makes every added token special)."""
    description = json.loads(tokenizer.to_str())
    for token in description["added_tokens"]:
        token["special"] = token["content"] not in PLAIN_ADDED
    return Tokenizer.from_str(json.dumps(description))


def training_texts() -> list[str]:
    """The training part of the corpus and the prompts of some training edit tasks."""
    tasks = [generate(seed, target_tokens=500).messages[-1]["content"] for seed in range(EDIT_TASK_TEXTS)]
    return [*load_corpus().train, *tasks]


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    train_tokenizer(training_texts()).save(str(out / "tokenizer.json"))


if __name__ == "__main__":
    main()
