"""After a verdict nobody reads a block that the broken sequence read or wrote, on the device or from host memory.

Every block that is read for a prompt was computed by some sequence; the test knows who computed which, from the plans,
and which of them had a part in something broken.
"""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lineclear.base.ids import SequenceId
from lineclear.guard.evidence import Finding, Verify
from lineclear.guard.guard import Guard
from lineclear.kv.copies import CopyEnd, DiskFind, Load, Offload
from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.tiers import Tiers, TiersConfig
from lineclear.protocol.sampling import SamplingParams
from lineclear.schedule.config import ScheduleConfig
from lineclear.schedule.plan import SequenceUpdate
from lineclear.schedule.scheduler import Scheduler
from lineclear.schedule.sequence import Sequence, Terms
from tests.unit.schedule.desk import DEFAULTS, Desk

BLOCK = 4
HEADS = ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [7, 7, 7, 7, 7])


class Scripted:
    """Finds a collapse when it is told to."""

    level = 0.0

    def __init__(self) -> None:
        self.is_due = False

    def judge(self, verify: Verify, tokens: "array[int]", num_prompt_tokens: int) -> Finding | None:  # noqa: ARG002
        return Finding("collapse", {"verifies": 1.0}) if self.is_due else None


class Guarded(Desk):
    """A desk with host memory and a guard that retries; each block on any tier has a content: damaged or not."""

    def __init__(self) -> None:
        super().__init__(num_blocks=40)
        tiers = TiersConfig(64, 0, OffloadPolicy.WRITE_THROUGH, PrefetchPolicy.WAIT, 1)
        self.tiers = Tiers(tiers, self.pool, self.tree)
        self.guard = Guard("retry", None)
        schedule = ScheduleConfig(**DEFAULTS)
        self.scheduler = Scheduler(schedule, self.pool, self.tree, None, self.tiers, self.guard)
        self.device: dict[int, bool] = {}
        self.host: dict[int, bool] = {}
        self.read_damage: set[SequenceId] = set()
        """Sequences that have read a damaged block."""

    def add_on(self, prompt: list[int], terms: Terms) -> Sequence:
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        sequence = Sequence(SequenceId(len(self.sequences) + 1), prompt, params, terms=terms)
        self.sequences[sequence.sequence_id] = sequence
        self.scheduler.add(sequence)
        sequence.detector = Scripted()
        return sequence

    def turn(self) -> list[SequenceUpdate]:
        plan = self.plan()
        self.copy()
        for chunk in plan.chunks:
            table = self.sequences[chunk.sequence_id].block_table
            if any(self.device.get(table[idx], False) for idx in range(chunk.start // BLOCK)):
                self.read_damage.add(chunk.sequence_id)
            for idx in range(chunk.start // BLOCK, -(-chunk.end // BLOCK)):
                # What is computed from damage is damage; a block that is gone on with stays what it was.
                goes_on = idx == chunk.start // BLOCK and chunk.start % BLOCK > 0 and self.device.get(table[idx], False)
                self.device[table[idx]] = chunk.sequence_id in self.read_damage or goes_on
        updates = self.commit(plan)
        self.copy()
        return updates

    def copy(self) -> None:
        for copy in self.scheduler.take_copies():
            size = 0 if isinstance(copy, DiskFind) else len(copy.host_block_ids)
            if isinstance(copy, Load):
                for host, device in zip(copy.host_block_ids, copy.device_block_ids, strict=True):
                    self.device[device] = self.host.get(host, False)
            if isinstance(copy, Offload):
                for host, device in zip(copy.host_block_ids, copy.device_block_ids, strict=True):
                    self.host[host] = self.device.get(device, False)
            self.scheduler.end_copy(CopyEnd(copy.copy_id, size))

    def damage(self, sequence: Sequence) -> None:
        """Overwrite all blocks of a running sequence, wherever they are from."""
        for block_id in sequence.block_table:
            self.device[block_id] = True

    def running(self) -> list[Sequence]:
        return [each for each in self.sequences.values() if each.state.value == "running" and each.output_token_ids]


prompts = st.tuples(st.sampled_from(HEADS), st.lists(st.integers(1, 2), min_size=1, max_size=12)).map(
    lambda parts: parts[0] + parts[1]
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(prompts, st.booleans()), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(0, 5),
    st.lists(prompts, min_size=1, max_size=4),
    st.booleans(),
)
def test_no_later_prompt_reads_what_a_verdict_was_about(
    first: list[tuple[list[int], bool]], num_turns: int, victim: int, later: list[list[int]], evicts: bool
) -> None:
    desk = Guarded()
    for prompt, uses_cache in first:
        desk.add_on(prompt, Terms(uses_cache=uses_cache))
    for _ in range(num_turns):
        desk.turn()
    if evicts:
        desk.tree.evict(100)
    running = desk.running()
    if not running:
        return
    broken = running[victim % len(running)]
    desk.damage(broken)
    while broken.state.value == "running":
        detector = broken.detector
        assert isinstance(detector, Scripted)
        detector.is_due = True
        updates = desk.turn()
    (update,) = [each for each in updates if each.sequence is broken]
    assert update.finish_reason == "broken"
    assert update.verdict is not None
    assert update.verdict.action == "retry"
    after = [desk.add_on(prompt, Terms()) for prompt in (*later, list(broken.tokens[: broken.num_prompt_tokens]))]
    after.append(
        desk.add_on(list(broken.tokens[: broken.num_prompt_tokens]), Terms(uses_cache=False, is_guarded=False))
    )
    while desk.scheduler.has_work:
        desk.turn()
    for sequence in after:
        assert sequence.sequence_id not in desk.read_damage
        assert len(sequence.output_token_ids) == 12
    assert after[-1].num_cached_tokens == 0
    assert desk.guard.statistics([]).num_forgotten_blocks == update.verdict.num_quarantined_blocks


def test_the_test_sees_damage_that_is_left_to_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the forgetting the same prompt reads it."""
    monkeypatch.setattr(Scheduler, "forget_prompt", lambda *_: 0)
    desk = Guarded()
    broken = desk.add_on([*HEADS[0], 1, 2, 1, 2], Terms())
    desk.turn()
    desk.damage(broken)
    assert isinstance(broken.detector, Scripted)
    broken.detector.is_due = True
    desk.turn()
    again = desk.add_on(list(broken.tokens[:9]), Terms())
    desk.turn()
    assert again.sequence_id in desk.read_damage


def test_a_retry_without_cache_reads_nothing_although_it_is_there() -> None:
    desk = Guarded()
    prompt = [*HEADS[0], 1, 2, 1, 2]
    first = desk.add_on(prompt, Terms())
    while desk.scheduler.has_work:
        desk.turn()
    cached = desk.tree.block_ids(desk.tree.match(array("I", prompt), 99))
    assert cached
    second = desk.add_on(prompt, Terms(uses_cache=False))
    desk.turn()
    assert first.output_token_ids
    assert second.num_cached_tokens == 0
    assert not set(cached) & set(second.block_table)


def test_a_sequence_that_may_not_be_ended_is_marked_once_and_goes_on() -> None:
    desk = Guarded()
    sequence = desk.add_on([1, 2, 3], Terms(is_guarded=False))
    assert isinstance(sequence.detector, Scripted)
    sequence.detector.is_due = True
    (update,) = desk.turn()
    sequence.detector.is_due = False
    assert update.verdict is not None
    assert (update.verdict.action, update.finish_reason) == ("observe", None)
    updates = [each for _ in range(20) if desk.scheduler.has_work for each in desk.turn()]
    assert [each.finish_reason for each in updates if each.finish_reason] == ["length"]
