"""Executes the copies that the tiers plan: between device and host on streams, between host and disk in threads.

    scheduler.take_copies ──▶ start ──▶ streams ──▶ poll ──▶ scheduler.end_copy
                                          │
                    readiness(load_ids) ──┘  for the pass that reads what is being loaded

Every copy but a delete is answered by exactly one `CopyEnd`, when nothing of it touches its blocks any more.

Order: the engine's thread calls everything.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

from lineclear.engine.block_copier import BlockCopier, block_runs
from lineclear.engine.copy_stream import CopyStream, CudaStream, Step, ThreadStream, Transfer
from lineclear.engine.disk_files import file_size_bytes
from lineclear.engine.disk_stream import DiskStream
from lineclear.engine.host_memory import HostMemory
from lineclear.engine.readiness import AlwaysReady, LoadReadiness, Readiness, WaitCounts, WatchedReadiness
from lineclear.engine.store import KvStore
from lineclear.kv.copies import Copy, CopyEnd, CopyFailure, CopyId, DiskDelete, Load, Offload
from lineclear.kv.prefix_key import PrefixKey
from lineclear.model.batch import Part

PartSteps: TypeAlias = Mapping[tuple[int, Part], int]
"""Which step of a transfer brings which part of which layer."""

MakeReadiness: TypeAlias = Callable[[Sequence[Transfer], PartSteps, WaitCounts], Readiness]

OnEarlyRead: TypeAlias = Callable[[CopyId, int, Part], None]
"""Hears of a load, and of the layer and part that a pass read before it was there."""


@dataclass(frozen=True, slots=True)
class CopyStatistics:
    """Totals since the start."""

    load_bytes: int
    load_seconds: float
    """In which a load was running; the same for the others."""
    offload_bytes: int
    offload_seconds: float
    disk_read_seconds: float
    disk_write_seconds: float
    num_waits: int
    """Times that a pass found a part not ready."""
    wait_seconds: float
    block_bytes: int
    """What a block takes in a memory."""
    file_bytes: int
    """What its file takes on disk."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Where copies run."""

    load: CopyStream
    offload: CopyStream


def open_streams(store: KvStore, before_step: Step | None = None) -> Streams:
    """Streams that fit a store's device; `before_step` is for tests that delay copies."""
    if store.device.type == "cuda":
        load, offload = (CudaStream(name, store.device) for name in ("loads", "offloads"))
        return Streams(load, offload)
    if before_step is None:
        return Streams(ThreadStream("loads"), ThreadStream("offloads"))
    return Streams(ThreadStream("loads", before_step), ThreadStream("offloads", before_step))


@dataclass(slots=True)
class _Totals:
    load_bytes: int = 0
    load_seconds: float = 0.0
    offload_bytes: int = 0
    offload_seconds: float = 0.0
    waits: WaitCounts = field(default_factory=WaitCounts)


class Copies(Protocol):
    """The acting half of the tiers, as whoever drives it sees it; `TierCopies` is that of one rank."""

    @property
    def is_idle(self) -> bool:
        """Whether no copy is under way."""
        ...

    def start(self, copies: Iterable[Copy]) -> None:
        """Begin copies, in order."""
        ...

    def readiness(self, load_ids: Collection[CopyId]) -> Readiness:
        """What a pass waits with that reads what these loads bring."""
        ...

    def watch_reads(self, on_early: OnEarlyRead) -> None:
        """Let somebody hear of every load whose part is read before it is there, on this rank."""
        ...

    def settle(self, load_ids: Collection[CopyId]) -> list[CopyEnd]:
        """Wait until loads have ended, and return their ends."""
        ...

    def poll(self) -> list[CopyEnd]:
        """Return the ends of what has ended since the last call."""
        ...

    def take_found(self) -> list[PrefixKey]:
        """Return what a look at the disk has found, if there was one; the oldest first."""
        ...

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `poll` may have something."""
        ...

    def statistics(self) -> CopyStatistics:
        """Totals since the start."""
        ...

    def close(self) -> None:
        """End all threads."""
        ...


class TierCopies:
    """The acting half of the tiers of one engine.

    Args:
        store: the device's KV.
        host: the host tier's memory.
        streams: of loads and offloads.
        disk: reads and writes files; None without a disk tier.
        make_readiness: what passes wait with; the lab takes guards out of it.
    """

    def __init__(
        self,
        store: KvStore,
        host: HostMemory,
        streams: Streams,
        disk: DiskStream | None,
        make_readiness: MakeReadiness = LoadReadiness,
    ) -> None:
        self._copier: BlockCopier = store.copier(host)
        self._streams = streams
        self._disk = disk
        self._make_readiness = make_readiness
        self._order = _reading_order(store)
        self._part_steps: PartSteps = {part: step for step, (_, part) in enumerate(self._order)}
        self._block_bytes = store.layout.block_bytes
        self._loads: dict[CopyId, tuple[Load, Transfer]] = {}
        self._offloads: dict[CopyId, tuple[Offload, Transfer]] = {}
        self._num_on_disk = 0
        self._totals = _Totals()
        self._on_early: OnEarlyRead | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no copy is under way."""
        return not self._loads and not self._offloads and not self._num_on_disk

    def start(self, copies: Iterable[Copy]) -> None:
        """Begin copies, in order."""
        for copy in copies:
            match copy:
                case Load():
                    runs = block_runs(copy.host_block_ids, copy.device_block_ids)
                    steps = [lambda idx=idx, runs=runs: self._copier.load(idx, runs) for idx, _ in self._order]
                    self._loads[copy.copy_id] = (copy, self._streams.load.start(copy.copy_id, steps))
                case Offload():
                    runs = block_runs(copy.device_block_ids, copy.host_block_ids)
                    steps = [lambda idx=idx, runs=runs: self._copier.offload(idx, runs) for idx, _ in self._order]
                    self._offloads[copy.copy_id] = (copy, self._streams.offload.start(copy.copy_id, steps))
                case _:
                    self._start_on_disk(copy)

    def readiness(self, load_ids: Collection[CopyId]) -> Readiness:
        """What a pass waits with that reads what these loads bring; those whose end was told are over."""
        transfers = [self._loads[load_id][1] for load_id in load_ids if load_id in self._loads]
        if not transfers:
            return AlwaysReady()
        readiness = self._make_readiness(transfers, self._part_steps, self._totals.waits)
        if self._on_early is None:
            return readiness
        return WatchedReadiness(readiness, transfers, self._part_steps, self._on_early)

    def watch_reads(self, on_early: OnEarlyRead) -> None:
        """Look at every part that a pass reads whether it is there."""
        self._on_early = on_early

    def settle(self, load_ids: Collection[CopyId]) -> list[CopyEnd]:
        """Wait until loads have ended, parts that no pass has read included; return the ends not told before."""
        running = [load_id for load_id in load_ids if load_id in self._loads]
        for load_id in running:
            self._loads[load_id][1].wait_all()
        return [self._end_load(load_id) for load_id in running]

    def poll(self) -> list[CopyEnd]:
        """Return the ends of what has ended since the last call."""
        ends = [
            self._end_load(transfer.copy_id)
            for transfer in self._streams.load.poll()
            if transfer.copy_id in self._loads  # it may be settled already
        ]
        ends += [self._end_offload(transfer.copy_id) for transfer in self._streams.offload.poll()]
        if self._disk is not None:
            from_disk = self._disk.poll()
            self._num_on_disk -= len(from_disk)
            ends += from_disk
        return ends

    def take_found(self) -> list[PrefixKey]:
        """Return what a look at the disk has found, if there was one; the oldest first."""
        return [] if self._disk is None else self._disk.take_found()

    def filenos(self) -> Collection[int]:
        """Descriptors that are readable when `poll` may have something."""
        filenos = [self._streams.load.fileno(), self._streams.offload.fileno()]
        return filenos if self._disk is None else [*filenos, self._disk.fileno()]

    def statistics(self) -> CopyStatistics:
        """Totals since the start."""
        totals, disk = self._totals, self._disk
        return CopyStatistics(
            load_bytes=totals.load_bytes,
            load_seconds=totals.load_seconds,
            offload_bytes=totals.offload_bytes,
            offload_seconds=totals.offload_seconds,
            disk_read_seconds=0.0 if disk is None else disk.read_seconds,
            disk_write_seconds=0.0 if disk is None else disk.write_seconds,
            num_waits=totals.waits.num_waits,
            wait_seconds=totals.waits.seconds,
            block_bytes=self._block_bytes,
            file_bytes=file_size_bytes(self._block_bytes),
        )

    def close(self) -> None:
        """End all threads; files that are not begun are not written."""
        self._streams.load.close()
        self._streams.offload.close()
        if self._disk is not None:
            self._disk.close()

    def _start_on_disk(self, copy: Copy) -> None:
        assert self._disk is not None, "a file is copied without a disk tier"
        assert not isinstance(copy, Load | Offload)
        self._disk.start(copy)
        self._num_on_disk += not isinstance(copy, DiskDelete)

    def _end_load(self, copy_id: CopyId) -> CopyEnd:
        load, transfer = self._loads.pop(copy_id)
        self._totals.load_bytes += len(load.host_block_ids) * self._block_bytes
        self._totals.load_seconds += transfer.seconds
        return _end(transfer, len(load.host_block_ids))

    def _end_offload(self, copy_id: CopyId) -> CopyEnd:
        offload, transfer = self._offloads.pop(copy_id)
        self._totals.offload_bytes += len(offload.host_block_ids) * self._block_bytes
        self._totals.offload_seconds += transfer.seconds
        return _end(transfer, len(offload.host_block_ids))


def _end(transfer: Transfer, num_blocks: int) -> CopyEnd:
    if transfer.has_failed:
        return CopyEnd(transfer.copy_id, 0, CopyFailure.COPY)
    return CopyEnd(transfer.copy_id, num_blocks)


def _reading_order(store: KvStore) -> list[tuple[int, tuple[int, Part]]]:
    """The layout's parts in the order in which a pass reads them: layer by layer, and of each the index first."""
    order: list[tuple[int, tuple[int, Part]]] = [
        (idx, (shape.layer, cast("Part", shape.part))) for idx, shape in enumerate(store.layout.shape)
    ]
    return sorted(order, key=lambda each: (each[1][0], each[1][1] != "index"))
