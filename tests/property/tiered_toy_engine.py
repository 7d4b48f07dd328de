"""The toy engine with host memory and a disk, whose copies run block by block whenever somebody lets them.

A pass waits for its loads as the real one does: they are complete, or known to have failed, when it reads.
"""

import random

from lineclear.base.ids import BlockId
from lineclear.kv.copies import (
    Copy,
    CopyEnd,
    CopyFailure,
    CopyId,
    DiskDelete,
    DiskFind,
    DiskRead,
    DiskWrite,
    Load,
    Offload,
)
from lineclear.kv.prefix_key import PrefixKey
from lineclear.kv.tiers import TiersConfig
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.plan import ChunkResult, Plan, SequenceUpdate
from lineclear.schedule.planner import Prefillers
from tests.property.toy_engine import ToyEngine

Rows = list[tuple[tuple[int, ...], tuple[int, ...]]]
"""Of one block: what the target and the draft layer hold for each of its slots."""
JUNK: tuple[int, ...] = (250,)


class TieredToyEngine(ToyEngine):
    """`rng` decides how far copies get, and which of them fail."""

    def __init__(
        self,
        config: ScheduleConfig,
        num_blocks: int,
        block_size: int,
        tiers: TiersConfig,
        rng: random.Random,
        prefillers: Prefillers | None = None,
    ) -> None:
        super().__init__(config, num_blocks, block_size, prefillers, tiers)
        self.rng = rng
        self.host: dict[BlockId, Rows] = {}
        self.disk: dict[PrefixKey, Rows] = {}
        self.copies: list[tuple[Copy, int]] = []
        self.fail_share = rng.choice((0.0, 0.0, 0.3))
        self.num_loads = 0
        self._num_blocks: dict[CopyId, int] = {}
        self.num_failed_loads = 0

    def plan(self) -> Plan:
        plan = super().plan()
        self._take()
        return plan

    def run(self, plan: Plan) -> dict[int, ChunkResult]:
        failed = {copy_id for copy_id in plan.load_ids if not self._settle(copy_id)}
        results = {}
        for chunk in plan.chunks:
            sequence = self.sequences[chunk.sequence_id]
            if sequence.load_id not in failed or sequence.load_id is None:
                result = self._run_chunk(sequence, chunk)
                if result is not None:
                    results[chunk.sequence_id] = result
        self.ends = [
            CopyEnd(each, 0, CopyFailure.COPY) if each in failed else CopyEnd(each, self._num_blocks[each])
            for each in plan.load_ids
        ]
        return results

    def commit(self, plan: Plan, results: dict[int, ChunkResult]) -> list[SequenceUpdate]:
        for end in self.ends:
            self.scheduler.end_copy(end)
        updates = super().commit(plan, results)
        self._take()
        self.scheduler.check()
        return updates

    def turn_copies(self) -> None:
        """Some copies get on, some end."""
        for _ in range(self.rng.randint(0, 3)):
            if self.copies:
                idx = self._next(self.rng.randrange(len(self.copies)))
                if self.rng.random() < 0.5:
                    self._advance(idx)
                else:
                    self._finish(idx)

    def drain(self, max_steps: int) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work and not self.copies:
                return
            if self.scheduler.has_work:
                self.step()
                self.scheduler.check()
            for _ in range(3):
                if self.copies:
                    self._finish(self._next(self.rng.randrange(len(self.copies))))
        raise AssertionError("work is left: no liveness")

    def _check_progress(self, planned: list[int], before: list[object], running: list[object]) -> None:
        """The oldest may stand still here: it waits for offloads, or its load has failed."""

    def _take(self) -> None:
        for copy in self.scheduler.take_copies():
            self.copies.append((copy, 0))
            match copy:
                case Load():
                    self.num_loads += 1
                    self._num_blocks[copy.copy_id] = len(copy.device_block_ids)
                    for block_id in copy.device_block_ids:
                        self._put(block_id, [(JUNK, JUNK)] * self.block_size)
                case Offload() | DiskRead():
                    self.host |= {block_id: [(JUNK, JUNK)] * self.block_size for block_id in copy.host_block_ids}
                case _:
                    pass

    def _next(self, idx: int) -> int:
        """Writes and deletes of files keep their order."""
        if isinstance(self.copies[idx][0], DiskWrite | DiskDelete):
            return next(i for i, (copy, _) in enumerate(self.copies) if isinstance(copy, DiskWrite | DiskDelete))
        return idx

    def _settle(self, copy_id: CopyId) -> bool:
        """End a load without telling the scheduler; whether it went well."""
        (idx,) = (i for i, (copy, _) in enumerate(self.copies) if isinstance(copy, Load) and copy.copy_id == copy_id)
        if self.rng.random() < self.fail_share:
            self.copies.pop(idx)
            self.num_failed_loads += 1
            return False
        while self._advance(idx):
            pass
        self.copies.pop(idx)
        return True

    def _finish(self, idx: int) -> None:
        copy, _ = self.copies[idx]
        if isinstance(copy, DiskDelete):
            for key in copy.keys:
                self.disk.pop(key, None)
            self.copies.pop(idx)
            return
        if isinstance(copy, DiskFind):
            self.copies.pop(idx)
            num_found = next((i for i, key in enumerate(copy.keys) if key not in self.disk), len(copy.keys))
            self.scheduler.end_copy(CopyEnd(copy.copy_id, num_found))
            self._take()
            return
        fails = self.rng.random() < self.fail_share
        while not fails and self._advance(idx):
            pass
        copy, num_done = self.copies.pop(idx)
        size = len(copy.host_block_ids)
        is_whole = num_done == size and not fails
        if not is_whole and isinstance(copy, Load | Offload):
            num_done = 0
        self.scheduler.end_copy(CopyEnd(copy.copy_id, num_done, None if is_whole else CopyFailure.IO))
        self._take()

    def _advance(self, idx: int) -> bool:
        copy, num_done = self.copies[idx]
        if isinstance(copy, DiskDelete | DiskFind) or num_done == len(copy.host_block_ids):
            return False
        block_id = copy.host_block_ids[num_done]
        match copy:
            case Load():
                self._put(copy.device_block_ids[num_done], self.host[block_id])
            case Offload():
                self.host[block_id] = self._get(copy.device_block_ids[num_done])
            case DiskRead():
                if copy.keys[num_done] not in self.disk:
                    return False
                self.host[block_id] = self.disk[copy.keys[num_done]]
            case DiskWrite():
                self.disk[copy.keys[num_done]] = self.host[block_id]
        self.copies[idx] = (copy, num_done + 1)
        return True

    def _get(self, block_id: BlockId) -> Rows:
        slots = range(block_id * self.block_size, (block_id + 1) * self.block_size)
        return [(self._target_store.get(slot, JUNK), self._draft_store.get(slot, JUNK)) for slot in slots]

    def _put(self, block_id: BlockId, rows: Rows) -> None:
        for offset, (target, draft) in enumerate(rows):
            self._target_store[block_id * self.block_size + offset] = target
            self._draft_store[block_id * self.block_size + offset] = draft
