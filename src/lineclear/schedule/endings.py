"""When a sequence ends by what it generated."""

from collections.abc import Collection
from collections.abc import Sequence as Tokens
from typing import Literal, NamedTuple

from lineclear.schedule.sequence import Sequence


class Ending(NamedTuple):
    """Where new tokens end their sequence."""

    num_kept: int
    """How many of the new tokens belong to the output."""
    finish_reason: Literal["stop", "length"]
    stop_token_id: int | None = None


def token_limit(sequence: Sequence, max_model_len: int) -> int:
    """Return how many tokens a sequence can have at most, its prompt included."""
    return min(sequence.num_prompt_tokens + sequence.sampling.max_tokens, max_model_len)


def find_ending(
    sequence: Sequence, token_ids: Tokens[int], eos_token_ids: Collection[int], max_model_len: int
) -> Ending | None:
    """Find the first of the new tokens that ends the sequence: at it (a stop token) or after it (the limit).

    Before `min_tokens` outputs a stop token is a token like any other.
    """
    sampling = sequence.sampling
    num_output = len(sequence.output_token_ids)
    num_left = token_limit(sequence, max_model_len) - sequence.num_tokens
    for index, token_id in enumerate(token_ids):
        is_stop = (token_id in eos_token_ids and not sampling.ignore_eos) or token_id in sampling.stop_token_ids
        if is_stop and num_output + index >= sampling.min_tokens:
            return Ending(index, "stop", token_id)
        if index + 1 >= num_left:
            return Ending(index + 1, "length")
    return None
