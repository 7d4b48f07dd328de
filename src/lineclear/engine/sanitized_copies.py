"""Copies between tiers under the KV sanitizer: what arrives is compared with what was sealed where it came from.

A copy that did not bring it ends as a failed one, so nobody uses it: a sequence whose load failed computes what that
should have brought, and a block that arrives damaged on the host is not kept there.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lineclear.engine.block_bytes import Digests
from lineclear.engine.readiness import Readiness
from lineclear.engine.sanitizer import KvSanitizer
from lineclear.engine.tier_copies import Copies, CopyStatistics, OnEarlyRead
from lineclear.kv.copies import Copy, CopyEnd, CopyFailure, CopyId, DiskRead, Load, Offload
from lineclear.kv.prefix_key import PrefixKey
from lineclear.model.batch import Part


@dataclass(frozen=True, slots=True)
class _Source:
    """A block of the device when its copy to the host began."""

    seal: Digests | None
    owners: tuple[str, ...]


class SanitizedCopies:
    """Other copies, with a look at what they bring.

    Args:
        copies: those that do the work.
        sanitizer: of the same device and host.
    """

    def __init__(self, copies: Copies, sanitizer: KvSanitizer) -> None:
        self._copies = copies
        self._sanitizer = sanitizer
        self._under_way: dict[CopyId, Load | Offload | DiskRead] = {}
        self._sources: dict[CopyId, list[_Source]] = {}
        self._early: dict[CopyId, set[tuple[int, Part]]] = {}
        copies.watch_reads(self._note_early)

    @property
    def is_idle(self) -> bool:
        """Whether no copy is under way."""
        return self._copies.is_idle

    def start(self, copies: Iterable[Copy]) -> None:
        """Begin copies, in order."""
        copies = tuple(copies)
        for copy in copies:
            self._note_start(copy)
        self._copies.start(copies)

    def readiness(self, load_ids: Collection[CopyId]) -> Readiness:
        """What a pass waits with."""
        return self._copies.readiness(load_ids)

    def watch_reads(self, on_early: OnEarlyRead) -> None:
        """Let somebody else hear of reads as well."""

        def tell_both(copy_id: CopyId, layer: int, part: Part) -> None:
            self._note_early(copy_id, layer, part)
            on_early(copy_id, layer, part)

        self._copies.watch_reads(tell_both)

    def settle(self, load_ids: Collection[CopyId]) -> list[CopyEnd]:
        """Wait until loads have ended; those that brought something else have failed."""
        return [self._judged(end) for end in self._copies.settle(load_ids)]

    def poll(self) -> list[CopyEnd]:
        """Return the ends of what has ended; what brought something else has failed."""
        return [self._judged(end) for end in self._copies.poll()]

    def take_found(self) -> list[PrefixKey]:
        """What a look at the disk has found."""
        return self._copies.take_found()

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `poll` may have something."""
        return self._copies.filenos()

    def statistics(self) -> CopyStatistics:
        """Totals since the start."""
        return self._copies.statistics()

    def close(self) -> None:
        """End all threads."""
        self._copies.close()

    def _note_start(self, copy: Copy) -> None:
        sanitizer = self._sanitizer
        match copy:
            case Load():
                sanitizer.begin_load(copy.device_block_ids)
            case Offload():
                self._sources[copy.copy_id] = [
                    _Source(sanitizer.source_seal(block_id), sanitizer.owners(block_id))
                    for block_id in copy.device_block_ids
                ]
                sanitizer.begin_arrival(copy.host_block_ids)
            case DiskRead():
                sanitizer.begin_arrival(copy.host_block_ids)
            case _:
                return
        self._under_way[copy.copy_id] = copy

    def _note_early(self, copy_id: CopyId, layer: int, part: Part) -> None:
        self._early.setdefault(copy_id, set()).add((layer, part))

    def _judged(self, end: CopyEnd) -> CopyEnd:
        copy = self._under_way.pop(end.copy_id, None)
        match copy:
            case Load():
                is_right = self._is_load_right(copy, is_whole=end.failure is None)
            case Offload():
                is_right = self._is_offload_right(copy, is_whole=end.failure is None)
            case DiskRead():
                self._sanitizer.end_disk_read(copy.host_block_ids[: end.num_done])
                is_right = True
            case None:
                is_right = True
        if is_right or end.failure is not None:
            return end
        return CopyEnd(end.copy_id, 0, CopyFailure.COPY)

    def _is_load_right(self, load: Load, *, is_whole: bool) -> bool:
        pairs = zip(load.host_block_ids, load.device_block_ids, strict=True)
        is_right = self._sanitizer.end_load(pairs, is_whole=is_whole)
        early = self._early.pop(load.copy_id, None)
        if early:
            self._sanitizer.read_early(load.device_block_ids, sorted(early))
        return is_right and not early

    def _is_offload_right(self, offload: Offload, *, is_whole: bool) -> bool:
        sources = self._sources.pop(offload.copy_id)
        is_right = True
        if is_whole:
            for source, block_id, host_id in zip(
                sources, offload.device_block_ids, offload.host_block_ids, strict=True
            ):
                is_right &= self._sanitizer.end_offload(host_id, block_id, source.seal, source.owners)
        return is_right
