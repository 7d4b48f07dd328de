"""The copies of all ranks of a group, behind what looks like those of one; each rank copies its own layers."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from lineclear.engine.readiness import Readiness
from lineclear.engine.tier_copies import Copies, CopyStatistics, OnEarlyRead
from lineclear.kv.copies import Copy, CopyEnd, CopyId
from lineclear.kv.prefix_key import PrefixKey
from lineclear.model.batch import Part


class GroupReadiness:
    """Each rank's own, on the way to it."""

    def __init__(self, by_rank: Sequence[Readiness]) -> None:
        self._by_rank = by_rank

    def of(self, rank: int) -> Readiness:
        """One rank's."""
        return self._by_rank[rank]

    def wait(self, layer: int, part: Part) -> None:
        """Nobody waits for all ranks at once."""
        raise AssertionError(f"layer {layer}, {part}: a rank waits for others' loads")


class GroupCopies:
    """A copy has ended when it has on all ranks, and has done what it did on all of them."""

    def __init__(self, by_rank: Sequence[Copies]) -> None:
        self._by_rank = by_rank
        self._ends: defaultdict[CopyId, list[CopyEnd]] = defaultdict(list)

    @property
    def is_idle(self) -> bool:
        """Whether no rank copies anything."""
        return all(copies.is_idle for copies in self._by_rank)

    def start(self, copies: Iterable[Copy]) -> None:
        """Begin copies on all ranks."""
        wanted = list(copies)
        for of_rank in self._by_rank:
            of_rank.start(wanted)

    def readiness(self, load_ids: Collection[CopyId]) -> Readiness:
        """What each rank waits with."""
        return GroupReadiness([copies.readiness(load_ids) for copies in self._by_rank])

    def watch_reads(self, on_early: OnEarlyRead) -> None:
        """Watch every rank's part of passes."""
        for copies in self._by_rank:
            copies.watch_reads(on_early)

    def settle(self, load_ids: Collection[CopyId]) -> list[CopyEnd]:
        """Wait until loads have ended on all ranks."""
        return self._joined([end for copies in self._by_rank for end in copies.settle(load_ids)])

    def poll(self) -> list[CopyEnd]:
        """What has ended on the last rank, too."""
        return self._joined([end for copies in self._by_rank for end in copies.poll()])

    def take_found(self) -> list[PrefixKey]:
        """What all ranks have found on disk; the oldest first."""
        first, *others = [copies.take_found() for copies in self._by_rank]
        return [key for key in first if all(key in other for other in others)]

    def filenos(self) -> Collection[int]:
        """All ranks'."""
        return [fileno for copies in self._by_rank for fileno in copies.filenos()]

    def statistics(self) -> CopyStatistics:
        """Rank 0's."""
        return self._by_rank[0].statistics()

    def close(self) -> None:
        """End all threads."""
        for copies in self._by_rank:
            copies.close()

    def _joined(self, ends: Iterable[CopyEnd]) -> list[CopyEnd]:
        done: list[CopyEnd] = []
        for end in ends:
            of_copy = self._ends[end.copy_id]
            of_copy.append(end)
            if len(of_copy) == len(self._by_rank):
                done.append(min(self._ends.pop(end.copy_id), key=lambda each: each.num_done))
        return done
