"""The KV sanitizer: finds blocks that were written after their last writer was done, and says whose they were.

    free, poisoned ──allocated: still poison?──▶ written ──rows computed, received or loaded──▶ sealed
          ▲                                                                                      │ checked: each pass
          └────────────────────────── freed: still as sealed? ───────────────────────────────────┘ that reads, sweep

A block is *sealed* row by row: rows below a sequence's computed tokens are never written again, so they have a digest;
rows at and past its newest token hold junk by design, so they have none. What a load brings has the digest that its
source had before it was offloaded, so the copies in between are checked as well (`engine/sanitized_copies.py`).

Invariants:
    1. A row has a digest only when no writer may write it any more.
    2. What a pass has computed from a block that is found damaged is not committed: its sequences end with an error,
       and the block's prefixes are forgotten.
    3. A healthy block is never reported.

`full` checks what a pass reads after the pass, before its results are committed, so damage during the pass is found as
well. `sample` does this for one allocation in `SAMPLE`, and at a sequence's first pass alone.

Driven by the engine, in one thread; the pool tells it of every hold. A pool speaks for all ranks of an instance, the
bytes are those of this rank.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lineclear.base.ids import BlockId, SequenceId
from lineclear.engine.block_bytes import BlockBytes, Digests
from lineclear.kv.holds import HoldBook
from lineclear.kv.kv_fault import KvFault, KvFaultKind
from lineclear.kv.pool import Holder
from lineclear.schedule.plan import Chunk, ChunkResult, Plan
from lineclear.schedule.sequence import Sequence as EngineSequence

SAMPLE: Final = 64
"""One allocation in so many is looked at by `sample`: a prompt of a thousand tokens has one such block."""
SWEEP_BLOCKS: Final = {True: 8, False: 1}
"""Blocks that each step sweeps, by whether all are sealed: at most as many as a short prompt has."""
KEPT_FAULTS: Final = 256

DAMAGED = "KV that this sequence reads was written by somebody else: see the worker's log"

logger = logging.getLogger(__name__)


class Seal(NamedTuple):
    """The digests of a block's first rows."""

    num_rows: int
    digests: Digests


@dataclass(frozen=True, slots=True)
class SanitizerStatistics:
    """Totals since the start."""

    num_seals: int
    """Times that rows were sealed."""
    num_checks: int
    """Times that a block was compared with its digest or with poison."""
    num_poisoned: int
    num_faults: Mapping[KvFaultKind, int]


class KvSanitizer:
    """Watches the blocks of one pool, and their copies below.

    Args:
        device: bytes of the pool's blocks.
        host: bytes of the host tier's, if there is one.
        is_full: every block, or one in `SAMPLE`.
    """

    def __init__(self, device: BlockBytes, host: BlockBytes | None, *, is_full: bool) -> None:
        self.device: Final = device
        self.host: Final = host
        self.is_full: Final = is_full
        self.book: Final = HoldBook()
        self.faults: deque[KvFault] = deque(maxlen=KEPT_FAULTS)
        self._poison = device.poison_digests()
        self._poisoned: set[BlockId] = set()
        self._chosen: set[BlockId] = set()
        self._seals: dict[BlockId, Seal] = {}
        self._host_seals: dict[BlockId, Digests] = {}
        self._host_owners: dict[BlockId, tuple[str, ...]] = {}
        self._loading: set[BlockId] = set()
        self._bad: set[BlockId] = set()
        self._seen: set[SequenceId] = set()
        self._suspects: set[BlockId] = set()
        self._host_suspects: set[BlockId] = set()
        self._queue: deque[tuple[bool, BlockId]] = deque()
        self._num_seals = 0
        self._num_checks = 0
        self._num_poisoned = 0
        self._num_faults = dict.fromkeys(KvFaultKind, 0)

    # What the pool tells.

    def allocated(self, block_ids: Sequence[BlockId], holder: Holder) -> None:
        """Blocks leave the free list: whoever wrote into them meanwhile had no right to."""
        damaged = [(block_id, parts) for block_id in block_ids if (parts := self._unpoisoned(block_id))]
        self._poisoned.difference_update(block_ids)
        self.book.allocated(block_ids, holder)
        for block_id in block_ids:
            if self.is_full or self.book.allocation(block_id) % SAMPLE == 0:
                self._chosen.add(block_id)
        for block_id, parts in damaged:
            self._report(KvFaultKind.WRITE_AFTER_FREE, block_id, parts, "allocation")

    def taken(self, block_ids: Sequence[BlockId], holder: Holder) -> None:
        """Keep it for reports."""
        self.book.taken(block_ids, holder)

    def released(self, block_ids: Sequence[BlockId], holder: Holder) -> None:
        """Keep it for reports."""
        self.book.released(block_ids, holder)

    def freed(self, block_id: BlockId) -> None:
        """Look at a block for the last time, then poison it."""
        if self.is_full:
            self.verify(block_id, "free")
        self.book.freed(block_id)
        self._seals.pop(block_id, None)
        self._bad.discard(block_id)
        if block_id in self._chosen:
            self._chosen.remove(block_id)
            self.device.fill(block_id)
            self._poisoned.add(block_id)
            self._num_poisoned += 1

    def writes_for(self, writer: Holder, sequence_id: SequenceId) -> None:
        """Keep it for reports."""
        self.book.writes_for(writer, sequence_id)

    # What the engine tells.

    def before_pass(self, plan: Plan, sequences: Mapping[SequenceId, EngineSequence]) -> None:
        """Seal what the pass reads and no pass has written: it came from elsewhere, and its writers are done.

        Order: after the plan, before its pass.
        """
        for chunk in plan.chunks:
            for block_id, num_rows in self._read_by(chunk, sequences[chunk.sequence_id]):
                if block_id not in self._seals and block_id not in self._loading and block_id not in self._bad:
                    self.seal(block_id, 0, num_rows)

    def after_pass(
        self,
        plan: Plan,
        sequences: Mapping[SequenceId, EngineSequence],
        results: Mapping[SequenceId, ChunkResult],
    ) -> dict[SequenceId, ChunkResult]:
        """Check what the pass has read, and seal what it has computed.

        Order: after the pass and the loads that it waited for, before its commit.
        Returns: an error for each sequence that reads a damaged block.
        """
        for block_id in {
            each for chunk in plan.chunks for each, _ in self._read_by(chunk, sequences[chunk.sequence_id])
        }:
            self.verify(block_id, "pass")
        errors: dict[SequenceId, ChunkResult] = {}
        for chunk in plan.chunks:
            sequence, result = sequences[chunk.sequence_id], results.get(chunk.sequence_id)
            if self._bad and not self._bad.isdisjoint(sequence.block_table):
                errors[chunk.sequence_id] = ChunkResult(error=DAMAGED)
            elif result is None or result.error is None:
                self._seal_computed(chunk, sequence, result)
            self._seen.add(chunk.sequence_id)
        return errors

    def forget(self, sequence_id: SequenceId) -> None:
        """A sequence has ended."""
        self._seen.discard(sequence_id)

    def sweep(self) -> None:
        """Check some blocks more, each in its turn, read or not."""
        for _ in range(SWEEP_BLOCKS[self.is_full]):
            if not self._queue:
                self._queue.extend((True, block_id) for block_id in (*self._seals, *self._poisoned))
                self._queue.extend((False, block_id) for block_id in self._host_seals)
            if not self._queue:
                return
            self._sweep_one(*self._queue.popleft())

    def sweep_all(self) -> None:
        """Check every block now. Cost: proportional to what is sealed or poisoned."""
        self._queue.clear()
        for block_id in (*self._seals, *self._poisoned):
            self._sweep_one(True, block_id)
        for block_id in tuple(self._host_seals):
            self._sweep_one(False, block_id)

    def take_suspects(self) -> tuple[list[BlockId], list[BlockId]]:
        """Return, once, the damaged blocks of device and host: nobody who comes later may find them."""
        suspects = list(self._suspects), list(self._host_suspects)
        self._suspects.clear()
        self._host_suspects.clear()
        return suspects

    def sealed_blocks(self) -> list[BlockId]:
        """Blocks of the device that have a whole seal."""
        return [block_id for block_id, seal in self._seals.items() if seal.num_rows == self.device.num_rows]

    def poisoned_blocks(self) -> list[BlockId]:
        """Free blocks of the device that were poisoned."""
        return list(self._poisoned)

    def sealed_host_blocks(self) -> list[BlockId]:
        """Blocks of the host that have a seal."""
        return list(self._host_seals)

    def statistics(self) -> SanitizerStatistics:
        """Return the totals."""
        return SanitizerStatistics(self._num_seals, self._num_checks, self._num_poisoned, dict(self._num_faults))

    # What copies tell.

    def begin_load(self, block_ids: Iterable[BlockId]) -> None:
        """A load writes these blocks of the device."""
        self._loading.update(block_ids)

    def end_load(self, pairs: Iterable[tuple[BlockId, BlockId]], *, is_whole: bool) -> bool:
        """A load has ended; pairs of host and device blocks. Whether it has brought what the host had sealed."""
        is_right = True
        for host_id, block_id in pairs:
            self._loading.discard(block_id)
            if not is_whole:
                continue
            expected = self._host_seals.get(host_id)
            if expected is None:
                if block_id in self._chosen:
                    self.seal(block_id, 0, self.device.num_rows)
            elif self._is_loaded(host_id, block_id, expected):
                self._seals[block_id] = Seal(self.device.num_rows, expected)
            else:
                is_right = False
        return is_right

    def read_early(self, block_ids: Sequence[BlockId], parts: Iterable[tuple[int, str]]) -> None:
        """A pass has read parts that a load had yet to bring into these blocks."""
        self._report(KvFaultKind.READ_BEFORE_READY, block_ids[0], tuple(parts), "load")

    def begin_arrival(self, host_ids: Iterable[BlockId]) -> None:
        """These blocks of the host are written from now on."""
        for host_id in host_ids:
            self._host_seals.pop(host_id, None)

    def source_seal(self, block_id: BlockId) -> Digests | None:
        """The digests of a whole block of the device, if it has them."""
        seal = self._seals.get(block_id)
        return seal.digests if seal is not None and seal.num_rows == self.device.num_rows else None

    def end_offload(
        self, host_id: BlockId, block_id: BlockId, expected: Digests | None, owners: tuple[str, ...]
    ) -> bool:
        """A copy to the host has ended. Whether it is what was sealed when it began, when `owners` had the source."""
        assert self.host is not None, "a copy ends on a host that is not there"
        if expected is None:
            # What is offloaded is published, and what is published is sealed; so in `full` this block was freed since.
            if self.is_full and block_id not in self._bad:
                self._report(KvFaultKind.READ_AFTER_FREE, block_id, (), "offload")
            return not self.is_full
        found = self.host.digests(host_id, 0, self.host.num_rows)
        self._num_checks += 1
        if found != expected:
            parts = self.host.differing(found, expected)
            self._add_fault(
                KvFault(
                    KvFaultKind.COPY_DIFFERS,
                    "host",
                    host_id,
                    0,
                    parts,
                    "offload",
                    self.owners(block_id),
                    owners,
                    self.book.described_history(block_id),
                )
            )
            return False
        self._host_seals[host_id] = found
        self._host_owners[host_id] = owners
        return True

    def end_disk_read(self, host_ids: Iterable[BlockId]) -> None:
        """Files have come whole, by their own checksums."""
        assert self.host is not None, "a file comes to a host that is not there"
        for host_id in host_ids:
            if self.is_full or host_id % SAMPLE == 0:
                self._host_seals[host_id] = self.host.digests(host_id, 0, self.host.num_rows)
                self._host_owners[host_id] = ("a file of the disk tier",)

    def owners(self, block_id: BlockId) -> tuple[str, ...]:
        """Whose a block of the device is, in words."""
        return tuple(self.book.named(holder) for holder in self.book.owners(block_id))

    # The work.

    def seal(self, block_id: BlockId, start: int, end: int) -> None:
        """Digest rows [start, end), to which those before belong already; a block that began unsealed stays so."""
        seal = self._seals.get(block_id)
        num_rows = 0 if seal is None else seal.num_rows
        if num_rows != start or end <= start:
            return
        digests = self.device.digests(block_id, start, end, None if seal is None else seal.digests)
        self._seals[block_id] = Seal(end, digests)
        self._num_seals += 1

    def verify(self, block_id: BlockId, found_by: str) -> bool:
        """Compare a block of the device with its seal, if it has one; whether it is as it was."""
        seal = self._seals.get(block_id)
        if seal is None:
            return True
        self._num_checks += 1
        found = self.device.digests(block_id, 0, seal.num_rows)
        if found == seal.digests:
            return True
        del self._seals[block_id]
        self._bad.add(block_id)
        self._suspects.add(block_id)
        parts = self.device.differing(found, seal.digests)
        self._report(KvFaultKind.WRITE_AFTER_SEAL, block_id, parts, found_by)
        return False

    def _read_by(self, chunk: Chunk, sequence: EngineSequence) -> Iterator[tuple[BlockId, int]]:
        """The blocks below a chunk that are looked at with it, and how many rows of each are computed."""
        if not self.is_full and chunk.sequence_id in self._seen:
            return
        size = self.device.num_rows
        for idx, block_id in enumerate(sequence.block_table.span(0, -(-chunk.start // size))):
            if block_id in self._chosen:
                yield block_id, min(size, chunk.start - idx * size)

    def _seal_computed(self, chunk: Chunk, sequence: EngineSequence, result: ChunkResult | None) -> None:
        end = chunk.end
        if chunk.samples and result is not None:
            end += result.num_accepted - chunk.num_drafts
        size = self.device.num_rows
        for idx in range(chunk.start // size, -(-end // size)):
            block_id = sequence.block_table[idx]
            if block_id in self._chosen:
                self.seal(block_id, max(chunk.start - idx * size, 0), min(end - idx * size, size))

    def _is_loaded(self, host_id: BlockId, block_id: BlockId, expected: Digests) -> bool:
        self._num_checks += 1
        found = self.device.digests(block_id, 0, self.device.num_rows)
        if found == expected:
            return True
        if self._verify_host(host_id, expected, "load"):
            self._report(KvFaultKind.COPY_DIFFERS, block_id, self.device.differing(found, expected), "load")
        return False

    def _verify_host(self, host_id: BlockId, expected: Digests, found_by: str) -> bool:
        assert self.host is not None, "a block of a host that is not there"
        self._num_checks += 1
        found = self.host.digests(host_id, 0, self.host.num_rows)
        if found == expected:
            return True
        del self._host_seals[host_id]
        self._host_suspects.add(host_id)
        parts = self.host.differing(found, expected)
        owners = self._host_owners.get(host_id, ())
        self._add_fault(KvFault(KvFaultKind.WRITE_AFTER_SEAL, "host", host_id, 0, parts, found_by, owners, (), ()))
        return False

    def _sweep_one(self, is_device: bool, block_id: BlockId) -> None:
        if not is_device:
            expected = self._host_seals.get(block_id)
            if expected is not None:
                self._verify_host(block_id, expected, "sweep")
        elif block_id in self._poisoned:
            if parts := self._unpoisoned(block_id):
                self._poisoned.remove(block_id)
                self._report(KvFaultKind.WRITE_AFTER_FREE, block_id, parts, "sweep")
        else:
            self.verify(block_id, "sweep")

    def _unpoisoned(self, block_id: BlockId) -> tuple[tuple[int, str], ...]:
        """What of a poisoned block is poison no more."""
        if block_id not in self._poisoned:
            return ()
        self._num_checks += 1
        found = self.device.digests(block_id, 0, self.device.num_rows)
        return self.device.differing(found, self._poison)

    def _report(self, kind: KvFaultKind, block_id: BlockId, parts: tuple[tuple[int, str], ...], found_by: str) -> None:
        owners = self.owners(block_id)
        previous = tuple(self.book.named(holder) for holder in self.book.previous_owners(block_id))
        if kind is KvFaultKind.WRITE_AFTER_FREE and found_by == "sweep":
            owners, previous = (), owners
        self._add_fault(
            KvFault(
                kind,
                "device",
                block_id,
                self.book.allocation(block_id),
                parts,
                found_by,
                owners,
                previous,
                self.book.described_history(block_id),
            )
        )

    def _add_fault(self, fault: KvFault) -> None:
        self.faults.append(fault)
        self._num_faults[fault.kind] += 1
        logger.error("KV sanitizer: %s", fault.text())
