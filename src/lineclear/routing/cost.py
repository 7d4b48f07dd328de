"""What it costs to place a prompt somewhere, in tokens that are computed before its first one can be."""

from typing import Final

from lineclear.routing.candidates import Ask, Candidate, Instance

SEQUENCE_TOKENS: Final = 256
"""What a sequence that a worker already has costs the next one, as prompt tokens: its share of every step."""


def worker_cost(ask: Ask, candidate: Candidate, *, has_instances: bool, min_handoff_tokens: int) -> float:
    """Of the worker alone, without what a prefill instance computes for it. Slow starters seem slower."""
    num_uncached = max(1, ask.num_prompt_tokens - candidate.num_cached_tokens)
    is_handed_off = has_instances and num_uncached >= min_handoff_tokens
    own_tokens = 1 if is_handed_off else num_uncached + candidate.num_pending_tokens
    return (own_tokens + SEQUENCE_TOKENS * candidate.num_sequences) / candidate.weight


def prefill_cost(ask: Ask, candidate: Candidate, instance: Instance, *, min_handoff_tokens: int) -> float:
    """Of the instance, for what the worker has not cached; 0 where the worker computes it itself."""
    if ask.num_prompt_tokens - candidate.num_cached_tokens < min_handoff_tokens:
        return 0.0
    num_cached = max(candidate.num_cached_tokens, instance.num_cached_tokens)
    return (max(1, ask.num_prompt_tokens - num_cached) + instance.num_pending_tokens) / instance.weight
