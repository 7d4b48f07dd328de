"""Text to tokens, with a hard line between what the chat format says and what somebody wrote.

Control tokens (`<|user|>`, `<tool_call>`) are split off here, by this module's own pattern, and only where the caller
says that they may appear. All other text goes through a tokenizer that has no control tokens at all, so that a user's
`<|user|>` becomes ordinary tokens that spell it.

Invariants:
1. `encode_text` yields no control token, whatever the text is.
2. In `encode_rendered`, a literal broken by the guard character yields no control token, and the guard character yields
   no token.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from lineclear.gateway.run_cache import RunCache
from lineclear.gateway.token_floor import read_token_floor
from lineclear.gateway.vocabulary import ControlToken, Vocabulary, read_vocabulary

MAX_CACHED_CHARACTERS = 32 * 1024 * 1024
"""Some hundred conversations of coding agents: about 100 MB with their tokens."""

_PROBE = "a"
"""Any text of at least one token: shows what the tokenizer puts around a text."""


class Tokenization:
    """The tokenizer of one checkpoint.

    Safe to use from several threads.

    Args:
        tokenizer_json: the content of `tokenizer.json`.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        description: dict[str, Any] = msgspec.json.decode(tokenizer_json)
        complete = Tokenizer.from_buffer(tokenizer_json)
        tokens = _tokens_by_id(complete)
        self.vocabulary: Vocabulary = read_vocabulary(description, tokens, _one_decoder(complete))
        self._floor = read_token_floor(description, tokens, self.vocabulary)
        self._plain = Tokenizer.from_buffer(msgspec.json.encode(_without_control_tokens(description)))
        self._cache = RunCache(MAX_CACHED_CHARACTERS)
        self._plain.no_truncation()
        self._plain.no_padding()
        self._prefix, self._suffix = self._surrounding_ids(complete)
        control_tokens = list(self.vocabulary.control_tokens.values())
        self._id_by_literal = {token.literal: token.token_id for token in control_tokens}
        self._control_pattern = _control_pattern(control_tokens)

    @property
    def control_literals(self) -> tuple[str, ...]:
        """The literals of all control tokens."""
        return tuple(self._id_by_literal)

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that a text has at least, control tokens allowed or not; see `TokenFloor`."""
        return self._floor.fewest_tokens(text)

    def encode_text(self, text: str) -> list[int]:
        """Encode text that somebody wrote: no control tokens."""
        return self._encode_runs([text])[0]

    def encode_prompt(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Encode a raw prompt, whose author may spell control tokens.

        Args:
            text: the prompt.
            add_special_tokens: put around it what the tokenizer's post-processor adds (a BOS token, for example).
        """
        token_ids = self._encode_with_control(text, guard="")
        return [*self._prefix, *token_ids, *self._suffix] if add_special_tokens else token_ids

    def encode_rendered(self, text: str, guard: str) -> list[int]:
        """Encode a rendered template; `guard` is the character that breaks the literals of its values."""
        return self._encode_with_control(text, guard)

    def _encode_with_control(self, text: str, guard: str) -> list[int]:
        if self._control_pattern is None:
            return self.encode_text(text.replace(guard, "") if guard else text)
        matches = list(self._control_pattern.finditer(text))
        starts = [0, *(match.end() for match in matches)]
        ends = [*(match.start() for match in matches), len(text)]
        runs = [
            text[start:end].replace(guard, "") if guard else text[start:end]
            for start, end in zip(starts, ends, strict=True)
        ]
        first, *others = self._encode_runs(runs)
        token_ids = list(first)
        for match, run_ids in zip(matches, others, strict=True):
            token_ids.append(self._id_by_literal[match[match.lastindex or 0]])
            token_ids.extend(run_ids)
        return token_ids

    def _encode_runs(self, runs: list[str]) -> list[list[int]]:
        found = [self._cache.find(run) for run in runs]
        missing = [run for run, token_ids in zip(runs, found, strict=True) if token_ids is None]
        encoded = iter(self._plain.encode_batch_fast(missing, add_special_tokens=False))
        for idx, run in enumerate(runs):
            if found[idx] is None:
                token_ids = found[idx] = next(encoded).ids
                self._cache.keep(run, token_ids)
        return [token_ids or [] for token_ids in found]

    def _surrounding_ids(self, complete: Tokenizer) -> tuple[list[int], list[int]]:
        inner = self.encode_text(_PROBE)
        outer = complete.encode(_PROBE, add_special_tokens=True).ids
        for start in range(len(outer) - len(inner) + 1):
            if outer[start : start + len(inner)] == inner:
                return outer[:start], outer[start + len(inner) :]
        return [], []


def load_tokenization(directory: Path) -> Tokenization:
    """Read the tokenizer of a checkpoint.

    Raises:
        OSError: `tokenizer.json` cannot be read.
    """
    return Tokenization((directory / "tokenizer.json").read_bytes())


def _tokens_by_id(tokenizer: Tokenizer) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}


def _one_decoder(tokenizer: Tokenizer) -> Callable[[int], str]:
    def decode_one(token_id: int) -> str:
        return tokenizer.decode([token_id], skip_special_tokens=False)

    return decode_one


def _without_control_tokens(description: dict[str, Any]) -> dict[str, Any]:
    control_ids = {added["id"] for added in description.get("added_tokens") or []}
    model = dict(description["model"])
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {token: token_id for token, token_id in model["vocab"].items() if token_id not in control_ids}
    return description | {"added_tokens": [], "model": model, "post_processor": None}


def _control_pattern(control_tokens: list[ControlToken]) -> re.Pattern[str] | None:
    if not control_tokens:
        return None
    longest_first = sorted(control_tokens, key=lambda token: len(token.literal), reverse=True)
    return re.compile("|".join(map(_literal_pattern, longest_first)))


def _literal_pattern(token: ControlToken) -> str:
    """A pattern with a group only where it is needed: without, the search is ten times as fast."""
    if not token.strips_left and not token.strips_right:
        return re.escape(token.literal)
    left = r"\s*" if token.strips_left else ""
    right = r"\s*" if token.strips_right else ""
    return f"{left}({re.escape(token.literal)}){right}"
