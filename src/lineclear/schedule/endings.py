"""When a sequence ends by what it generated."""

from collections.abc import Sequence as Tokens
from typing import Literal, NamedTuple

from lineclear.schedule.sequence import Sequence


class Ending(NamedTuple):
    """Where new tokens end their sequence."""

    num_kept: int
    """How many of the new tokens belong to the output."""
    finish_reason: Literal["stop", "length"]
    stop_token_id: int | None = None


def find_ending(sequence: Sequence, token_ids: Tokens[int]) -> Ending | None:
    """Find the first of the new tokens that ends the sequence: at it (an end token) or after it (the limit).

    Before `min_tokens` outputs an end token is a token like any other.
    """
    num_left = sequence.token_limit - sequence.num_tokens
    if not sequence.end_token_ids.isdisjoint(token_ids):
        num_exempt = max(0, sequence.sampling.min_tokens - len(sequence.output_token_ids))
        for index in range(num_exempt, min(num_left, len(token_ids))):
            if token_ids[index] in sequence.end_token_ids:
                return Ending(index, "stop", token_ids[index])
    return Ending(num_left, "length") if len(token_ids) >= num_left else None
