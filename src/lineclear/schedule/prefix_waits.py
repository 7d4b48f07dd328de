"""Waiting for a prefix that somebody else is just computing, so that it is computed once.

A running prefill *leads* at its place in the tree: the next edge it will add there is known. A waiting sequence whose
longest match ends at the same place and would go on by the same edge waits until the leader has added all that both
have in common, or does neither run nor receive any more. Leaders never wait for followers, so nobody waits for ever.
"""

from array import array
from collections.abc import Iterable

from lineclear.base.ids import SequenceId
from lineclear.kv.radix import PrefixNode, RadixTree
from lineclear.schedule.sequence import Sequence, SequenceState


class PrefixWaits:
    """Who waits for whose prefix."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._leaders: dict[tuple[PrefixNode, bytes], Sequence] = {}
        self._waits: dict[SequenceId, tuple[Sequence, int]] = {}

    def note_leaders(self, running: Iterable[Sequence]) -> None:
        """Learn anew what running sequences will add to the tree."""
        self._leaders.clear()
        for sequence in running:
            self.note_leader(sequence)

    def note_leader(self, sequence: Sequence) -> None:
        """Learn what one more running sequence will add to the tree, if it is still computing tokens it knows."""
        prefix = None if sequence.is_suspect else sequence.prefix
        key = self._tree.next_key(prefix, sequence.tokens) if prefix else None
        if prefix is not None and key is not None:
            self._leaders.setdefault((prefix, key), sequence)

    def is_waiting(self, sequence: Sequence) -> bool:
        """Whether what a sequence was found to wait for is still to come. Cost: O(1)."""
        wait = self._waits.get(sequence.sequence_id)
        if wait is None:
            return False
        leader, num_blocks = wait
        is_coming = not leader.is_suspect and leader.state in {SequenceState.RUNNING, SequenceState.RECEIVING}
        if is_coming and leader.prefix and leader.prefix.num_blocks < num_blocks:
            return True
        del self._waits[sequence.sequence_id]
        return False

    def must_wait(self, sequence: Sequence, prefix: PrefixNode) -> bool:
        """Find out whether a leader is about to extend a sequence's longest match, and remember it."""
        key = self._tree.next_key(prefix, sequence.tokens)
        leader = self._leaders.get((prefix, key)) if key is not None else None
        if leader is None:
            return False
        common = _common_len(sequence.tokens, leader.tokens)
        self._waits[sequence.sequence_id] = (leader, (common - 1) // self._tree.block_size)
        return True

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence that does not wait any more."""
        self._waits.pop(sequence.sequence_id, None)


def _common_len(first: "array[int]", second: "array[int]") -> int:
    """Return the length of two token lists' common prefix, by bisection over comparisons of whole buffers."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
