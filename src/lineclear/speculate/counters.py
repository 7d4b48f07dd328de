"""What the counts of drafts say about a sequence's health."""

from lineclear.protocol.drafts import DraftCounts


def accept_length(counts: DraftCounts) -> float | None:
    """Return the tokens emitted per verify: the accepted drafts and the one token after them, averaged.

    Returns: 1 to k + 1; None before the first verify.
    """
    if counts.num_verifies == 0:
        return None
    return 1.0 + sum(counts.accepted_by_position) / counts.num_verifies


def accept_rate(counts: DraftCounts) -> float | None:
    """Return the share of proposed drafts that were accepted.

    Returns: 0 to 1; None before the first draft.
    """
    num_proposed = sum(counts.proposed_by_position)
    return sum(counts.accepted_by_position) / num_proposed if num_proposed else None
