"""What the scheduler makes of tiers: loads in plans, loads that fail, prompts on their way from disk."""

import pytest

from lineclear.base.errors import InvariantError
from lineclear.kv.copies import Copy, CopyEnd, CopyFailure, DiskFind, Load, Offload
from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.tiers import Tiers, TiersConfig
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.scheduler import Scheduler
from lineclear.schedule.sequence import Sequence, SequenceState
from tests.unit.schedule.desk import DEFAULTS, Desk

PROMPT = list(range(1, 14))
"""Three blocks of four tokens, and one token."""


class TieredDesk(Desk):
    """A desk whose copies a test ends."""

    def __init__(self, *, num_disk_blocks: int = 0, **config: int) -> None:
        super().__init__(**config)
        tiers = TiersConfig(32, num_disk_blocks, OffloadPolicy.WRITE_THROUGH, PrefetchPolicy.WAIT, 1)
        self.tiers = Tiers(tiers, self.pool, self.tree)
        schedule = ScheduleConfig(**(DEFAULTS | config))
        self.scheduler = Scheduler(schedule, self.pool, self.tree, None, self.tiers)

    def copies(self, kind: type) -> list[Copy]:
        return [copy for copy in self.scheduler.take_copies() if isinstance(copy, kind)]

    def end_all(self) -> None:
        for _ in range(3):
            for copy in self.scheduler.take_copies():
                size = 0 if isinstance(copy, DiskFind) else len(copy.host_block_ids)
                self.scheduler.end_copy(CopyEnd(copy.copy_id, size))

    def fill_host(self, prompt: list[int] = PROMPT) -> None:
        """Let the host have a prompt that the device has not."""
        self.add(prompt, max_tokens=1)
        self.end_all()
        self.step()
        self.end_all()
        self.tree.evict(100)
        self.scheduler.check()


def loading() -> tuple[TieredDesk, Sequence, Load]:
    desk = TieredDesk()
    desk.fill_host()
    sequence = desk.add(PROMPT)
    plan = desk.plan()
    (load,) = desk.copies(Load)
    assert isinstance(load, Load)
    assert plan.load_ids == (load.copy_id,)
    assert desk.spans(plan) == [(sequence.sequence_id, 12, 13)]
    desk.outstanding = plan
    return desk, sequence, load


def test_a_loaded_prompt_runs_at_once_and_enters_the_tree_when_the_load_has_ended() -> None:
    desk, sequence, load = loading()
    assert sequence.num_cached_tokens == 12
    assert desk.tree.match(sequence.tokens, 9).num_blocks == 0
    with pytest.raises(InvariantError, match="loads have not ended"):
        desk.commit(desk.outstanding)
    desk.scheduler.end_copy(CopyEnd(load.copy_id, 3))
    (update,) = desk.commit(desk.outstanding)
    assert update.token_ids == [9]
    assert desk.tree.match(sequence.tokens, 9).num_blocks == 3
    assert desk.copies(Offload) == []  # the host has it


def test_what_was_computed_on_a_load_that_failed_is_thrown_away() -> None:
    desk, sequence, load = loading()
    desk.scheduler.end_copy(CopyEnd(load.copy_id, 0, CopyFailure.COPY))
    assert desk.commit(desk.outstanding) == []
    assert (sequence.state, sequence.num_tokens) == (SequenceState.WAITING, 13)
    plan = desk.plan()
    assert plan.load_ids == ()
    assert desk.spans(plan) == [(sequence.sequence_id, 0, 13)]
    assert len(desk.commit(plan)) == 1


def test_a_cancelled_sequence_leaves_its_blocks_to_the_load() -> None:
    desk, sequence, load = loading()
    desk.scheduler.cancel(sequence.sequence_id)
    desk.scheduler.end_copy(CopyEnd(load.copy_id, 3))
    assert [update.finish_reason for update in desk.commit(desk.outstanding)] == ["cancelled"]
    assert desk.pool.num_free == desk.pool.num_blocks


def test_who_waits_for_the_disk_lets_others_pass() -> None:
    desk = TieredDesk(num_disk_blocks=8)
    sequence = desk.add(PROMPT)
    (find,) = desk.copies(DiskFind)
    other = desk.add([60, 61, 62])
    desk.copies(DiskFind)
    assert desk.scheduler.is_prefetching(sequence.sequence_id)
    assert [each[0] for each in desk.spans(desk.plan())] == [other.sequence_id]
    desk.scheduler.end_copy(CopyEnd(find.copy_id, 0))
    assert not desk.scheduler.is_prefetching(sequence.sequence_id)


def test_a_wait_for_the_disk_can_be_stopped() -> None:
    desk = TieredDesk(num_disk_blocks=8)
    sequence = desk.add(PROMPT)
    assert desk.spans(desk.plan()) == []
    desk.commit(desk.scheduler._outstanding)
    assert not desk.scheduler.has_work
    desk.scheduler.stop_prefetch(sequence.sequence_id)
    assert desk.scheduler.has_work
    assert desk.spans(desk.plan()) == [(sequence.sequence_id, 0, 13)]
