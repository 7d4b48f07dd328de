"""What queued sequences still wait for on its way from disk to host memory.

    begin ──DiskFind──▶ finding ──end_find──▶ reading ──every read ended──▶ (forgotten)

Invariants:
    1. A sequence has at most one prefetch, and it ends with its last read, or when it is cancelled.
    2. Cancelling ends the wait and nothing else: reads that were begun go on, and what they bring stays in host memory.
"""

from collections.abc import Collection, Iterable, Sequence

from lineclear.base.ids import SequenceId
from lineclear.kv.copies import CopyId, DiskFind
from lineclear.kv.copy_book import CopyBook
from lineclear.kv.tier_index import Named


class Prefetches:
    """The prefetches of all queued sequences."""

    def __init__(self, book: CopyBook) -> None:
        self._book = book
        self._finds: dict[CopyId, tuple[SequenceId, Sequence[Named]]] = {}
        self._copies: dict[SequenceId, set[CopyId]] = {}
        self._waiting: dict[CopyId, set[SequenceId]] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def is_open(self, sequence_id: SequenceId) -> bool:
        """Whether a sequence's prefetch has not ended."""
        return sequence_id in self._copies

    def begin(self, sequence_id: SequenceId, names: Sequence[Named], arrivals: Collection[CopyId]) -> None:
        """Ask which of these are on disk, and wait for copies that bring others already."""
        self._wait(sequence_id, arrivals)
        if names:
            copy_id = self._book.next_id()
            self._finds[copy_id] = (sequence_id, names)
            self._wait(sequence_id, (copy_id,))
            self._book.start(DiskFind(copy_id, tuple(named.key for named in names)))

    def ends_find(self, copy_id: CopyId) -> bool:
        """Whether a copy is a find."""
        return copy_id in self._finds

    def take_found(self, copy_id: CopyId, num_found: int) -> tuple[SequenceId, Sequence[Named]]:
        """Return who asked, and what is on disk of what was asked for."""
        sequence_id, names = self._finds.pop(copy_id)
        return sequence_id, names[:num_found]

    def wait(self, sequence_id: SequenceId, copy_ids: Iterable[CopyId]) -> None:
        """Let an open prefetch wait for more copies."""
        if sequence_id in self._copies:
            self._wait(sequence_id, copy_ids)

    def end(self, copy_id: CopyId) -> None:
        """A copy has ended: with its last one, a prefetch has too."""
        for sequence_id in self._waiting.pop(copy_id, ()):
            copies = self._copies[sequence_id]
            copies.remove(copy_id)
            if not copies:
                del self._copies[sequence_id]

    def cancel(self, sequence_id: SequenceId) -> None:
        """End a sequence's wait."""
        for copy_id in self._copies.pop(sequence_id, ()):
            self._waiting[copy_id].remove(sequence_id)

    def _wait(self, sequence_id: SequenceId, copy_ids: Iterable[CopyId]) -> None:
        for copy_id in copy_ids:
            self._copies.setdefault(sequence_id, set()).add(copy_id)
            self._waiting.setdefault(copy_id, set()).add(sequence_id)
