"""Prompts rebuilt from a trace: equal ids are equal tokens, in every run and on every machine."""

import hashlib
from array import array
from functools import lru_cache

from lineclear.trace.events import Arrived

MAX_TOKEN_ID = 65_535

_KEPT_TOKENS = 8_000_000
"""Of blocks, so that prompts which share them are quick to make."""


class PromptBuilder:
    """Makes up the tokens of prompts.

    Args:
        block_len: tokens of a block.
        first_token, last_token: the ids that are used, both included; none of them may mean anything to the server.
    """

    def __init__(self, block_len: int, first_token: int, last_token: int) -> None:
        assert 0 <= first_token < last_token <= MAX_TOKEN_ID
        self._block_len = block_len
        self._ids = list(range(first_token, last_token + 1))  # a list, so that equal ids are one object
        self._block = lru_cache(_KEPT_TOKENS // block_len)(self._made_of_block)

    def tokens(self, arrived: Arrived) -> list[int]:
        """`prompt_len` ids: those of the blocks, then the request's own."""
        tokens: list[int] = []
        for block in arrived.blocks:
            tokens += self._block(block)
        del tokens[arrived.prompt_len :]
        return tokens + self._made_of(f"request {arrived.request}", arrived.prompt_len - len(tokens))

    def _made_of_block(self, block: int) -> list[int]:
        return self._made_of(f"block {block}", self._block_len)

    def _made_of(self, name: str, count: int) -> list[int]:
        ids, span = self._ids, len(self._ids)
        raw = array("H", hashlib.shake_128(name.encode("utf-8", "surrogatepass")).digest(2 * count))
        return [ids[each % span] for each in raw]
