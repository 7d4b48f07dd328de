"""How one step's tokens are divided among the prompts that are being computed.

Half goes to the oldest prompt, so that it is never starved; half to those with the least left, so that a short prompt
beside a long one is soon through. What one half does not need, the other gets.

A token far into a prompt costs more than one at its start, because the indexer scores every token before it. So the
budget is counted in *work*, a token of a prompt's first chunk being 1: deep in a long prompt chunks get shorter and
steps take no longer, and nobody beside them waits longer for its next token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST_CHUNK_SHARE = 32
"""A chunk that is not a prompt's last has at least this part of the step's budget, whatever its tokens cost."""

SHORTEST_CHUNK_SHARE_OF_COPIES = 2
"""The same where each step brings a copy of the whole context from elsewhere: what that costs does not shrink with the
chunk, and what is computed behind it does."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """What a prompt still needs: tokens left to compute, after so many of context."""

    num_left: int
    context_len: int


def share_budget(
    budget: int,
    prefills: Sequence[Prefill],
    *,
    max_batch_tokens: int,
    double_cost_len: int,
    shortest_chunk_share: int = SHORTEST_CHUNK_SHARE,
) -> list[int]:
    """Return the tokens that each prompt gets, in the order of the prompts, which are oldest first.

    Together at most `budget`; the oldest gets at least one, if there is any. `double_cost_len` is the context at which
    a token costs twice what it costs without any.
    """
    if not prefills or budget <= 0:
        return [0] * len(prefills)
    # The tokens of a first chunk have half of it before them on average.
    first_chunk_len = double_cost_len + max_batch_tokens / 2
    prices = [1 + prefill.context_len / first_chunk_len for prefill in prefills]
    shortest = max(1, max_batch_tokens // shortest_chunk_share)
    shares = [0] * len(prefills)
    wanted = sum(prefill.num_left * price for prefill, price in zip(prefills[1:], prices[1:], strict=True))
    oldest_work = max(budget / 2, budget - wanted)
    shares[0] = min(prefills[0].num_left, budget, max(int(oldest_work / prices[0]), shortest))
    # A chunk that is as long as it must be may cost more than its half: the other half is the others' all the same.
    work, num_left = max(budget - shares[0] * prices[0], budget / 2), budget - shares[0]
    for idx in sorted(range(1, len(prefills)), key=lambda idx: prefills[idx].num_left):
        num_tokens = min(prefills[idx].num_left, int(work / prices[idx]), num_left)
        if num_tokens >= min(shortest, prefills[idx].num_left):
            shares[idx] = num_tokens
            work -= num_tokens * prices[idx]
            num_left -= num_tokens
    return shares
