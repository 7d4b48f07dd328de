"""Numbers the copies of one worker, keeps those that are to be started, and counts what failed."""

from collections import Counter
from typing import Final

from lineclear.kv.copies import Copy, CopyFailure, CopyId
from lineclear.kv.pool import Holder, HolderKind


class CopyBook:
    """What the parts of the tiers have in common."""

    def __init__(self) -> None:
        self.failures: Final[Counter[CopyFailure]] = Counter()
        self._num_copies = 0
        self._copies: list[Copy] = []

    def next_id(self) -> CopyId:
        """Number one more copy."""
        copy_id = CopyId(self._num_copies)
        self._num_copies += 1
        return copy_id

    def start(self, copy: Copy) -> None:
        """Put a copy down to be started; its blocks are held already."""
        self._copies.append(copy)

    def take(self) -> list[Copy]:
        """Return, once, what is to be started, in order."""
        copies, self._copies = self._copies, []
        return copies


def writer_of(copy_id: CopyId) -> Holder:
    """Who holds the blocks that a copy writes. Copies count downwards: forward passes and remote ranks count up."""
    return Holder(HolderKind.WRITER, -1 - copy_id)


def reader_of(copy_id: CopyId) -> Holder:
    """Who holds the blocks that a copy reads."""
    return Holder(HolderKind.READER, -1 - copy_id)
