"""The tiers against memories that know what they hold: whatever happens in whatever order, nothing wrong is found.

The model: a dict from block to content for device and host, and one from key to content for the disk. A block's content
is the prefix that was computed for it, or junk. Copies move contents block by block, at any time between their start
and their end; whoever gets a block fills it with junk first. So a block that is used too early, reused too early, or
named wrongly is found when it is read.
"""

from array import array
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lineclear.base.ids import BlockId, SequenceId
from lineclear.kv.copies import (
    Copy,
    CopyEnd,
    CopyFailure,
    DiskDelete,
    DiskFind,
    DiskRead,
    DiskWrite,
    Load,
    Offload,
)
from lineclear.kv.offload_policy import OffloadPolicy, PrefetchPolicy
from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.prefix_key import PrefixKey, child_key
from lineclear.kv.radix import RadixTree
from lineclear.kv.tiers import Tiers, TiersConfig

BLOCK_SIZE = 2
JUNK = ("junk",)
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=13)
Content = tuple[object, ...]


def prefixes(token_ids: Sequence[int]) -> list[tuple[int, ...]]:
    """What each block of a prompt is computed from, its follower included."""
    return [tuple(token_ids[: end + 1]) for end in range(BLOCK_SIZE, len(token_ids), BLOCK_SIZE)]


def key_of(prefix: tuple[int, ...]) -> PrefixKey:
    key = None
    for start in range(0, len(prefix) - BLOCK_SIZE, BLOCK_SIZE):
        key = child_key(key, array("I", prefix[start : start + BLOCK_SIZE + 1]).tobytes())
    assert key is not None
    return key


class Sequenced:
    """A sequence that holds blocks; what it loads it may read when the load has ended well."""

    def __init__(self, holder: Holder, token_ids: list[int], block_ids: list[BlockId]) -> None:
        self.holder = holder
        self.token_ids = token_ids
        self.block_ids = block_ids


class TiersMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(4, 12),
        num_host_blocks=st.integers(1, 12),
        num_disk_blocks=st.integers(0, 10),
        offload=st.sampled_from(OffloadPolicy),
        num_ahead_blocks=st.integers(0, 3),
    )
    def start(
        self,
        num_blocks: int,
        num_host_blocks: int,
        num_disk_blocks: int,
        offload: OffloadPolicy,
        num_ahead_blocks: int,
    ) -> None:
        # Small tiers keep an eighth free ahead at most; with eight times the blocks the shares show.
        self.pool = BlockPool(8 * num_blocks if offload is OffloadPolicy.WRITE_BACK else num_blocks)
        self.tree = RadixTree(self.pool, BLOCK_SIZE)
        config = TiersConfig(num_host_blocks, num_disk_blocks, offload, PrefetchPolicy.WAIT, num_ahead_blocks)
        self.tiers = Tiers(config, self.pool, self.tree)
        self.device: dict[BlockId, Content] = {}
        self.host: dict[BlockId, Content] = {}
        self.disk: dict[PrefixKey, Content] = {}
        self.sequences: list[Sequenced] = []
        self.loading: dict[int, tuple[Sequenced | None, int]] = {}
        """By load: for whom, and how many blocks of its prefix it had."""
        self.copies: list[tuple[Copy, int]] = []
        """Those under way, and how many blocks have been copied."""
        self.forgotten: set[int] = set()
        self.now = 0
        self.num_sequences = 0

    # Sequences.

    @rule(token_ids=PROMPTS)
    def compute(self, token_ids: list[int]) -> None:
        """Take what is on the device and on the host; if nothing is loaded, compute the rest and insert it."""
        self.now += 1
        self.num_sequences += 1
        tokens = array("I", token_ids)
        wanted = prefixes(token_ids)
        holder = Holder(HolderKind.SEQUENCE, self.num_sequences)
        node = self.tree.match(tokens, self.now)
        shared = self.tree.block_ids(node)
        assert [self.device[each] for each in shared] == wanted[: len(shared)]
        self.pool.acquire(shared, holder)
        self.tiers.note_used(node, self.now)
        sequence = Sequenced(holder, token_ids, shared)
        self.sequences.append(sequence)
        hit = self.tiers.find(node, tokens)
        end = len(shared) + len(hit)
        assert [self.host[each] for each in hit.host_block_ids] == wanted[len(shared) : end]
        own = self.allocate(len(hit) or len(wanted) - len(shared), holder)
        if own is None:
            self.take()
            return
        sequence.block_ids = shared + own
        if hit:
            copy_id = self.tiers.begin_load(hit, own, counts=True)
            self.loading[copy_id] = (sequence, len(shared))
        else:
            for block_id, prefix in zip(own, wanted[len(shared) :], strict=True):
                self.device[block_id] = prefix
            self.insert(sequence, len(shared))
        self.take()

    def insert(self, sequence: Sequenced, num_shared: int) -> None:
        """Publish what a sequence has computed or loaded; where the tree has it, the sequence's own stays private."""
        tokens = array("I", sequence.token_ids)
        node = self.tree.match(array("I", sequence.token_ids[: num_shared * BLOCK_SIZE + 1]), self.now)
        if node.num_blocks < num_shared:
            return  # the prefix was forgotten
        start = node
        end = self.tree.insert(node, tokens, sequence.block_ids[num_shared:], self.now)
        self.tiers.note_inserted(start, end, self.now)

    def allocate(self, count: int, holder: Holder) -> list[BlockId] | None:
        """Get blocks, at the cost of the coldest; who gets them finds junk, and may write."""
        self.tree.evict(count - self.pool.num_free)
        block_ids = self.pool.try_allocate(count, holder)
        self.device |= dict.fromkeys(block_ids or (), JUNK)
        return block_ids

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def end_or_cancel(self, data: st.DataObject) -> None:
        """A sequence ends at any moment, also under its load."""
        sequence = self.sequences.pop(data.draw(st.integers(0, len(self.sequences) - 1)))
        self.pool.release(sequence.block_ids, sequence.holder)
        for copy_id, (each, num_shared) in self.loading.items():
            if each is sequence:
                self.loading[copy_id] = (None, num_shared)

    @rule(token_ids=PROMPTS)
    def forget(self, token_ids: list[int]) -> None:
        node = self.tree.match(array("I", token_ids), self.now)
        self.tree.forget(node)
        self.tiers.forget(node)
        self.take()
        if node.num_blocks and self.tree.match(array("I", token_ids), self.now).num_blocks == 0:
            assert not self.tiers.find(self.tree.root, array("I", token_ids))

    @rule(num_blocks=st.integers(1, 4))
    def evict(self, num_blocks: int) -> None:
        self.tree.evict(num_blocks)

    @rule()
    def write_back(self) -> None:
        self.now += 1
        self.tiers.write_back(self.now)
        self.take()

    # Prefetches.

    @rule(token_ids=PROMPTS, sequence_id=st.integers(0, 3))
    def prefetch(self, token_ids: list[int], sequence_id: int) -> None:
        if not self.tiers.is_waiting(SequenceId(sequence_id)):
            tokens = array("I", token_ids)
            self.tiers.begin_prefetch(SequenceId(sequence_id), self.tree.match(tokens, self.now), tokens)
            self.take()

    @rule(sequence_id=st.integers(0, 3))
    def cancel_prefetch(self, sequence_id: int) -> None:
        self.tiers.cancel_prefetch(SequenceId(sequence_id))
        assert not self.tiers.is_waiting(SequenceId(sequence_id))

    # Copies.

    def take(self) -> None:
        """Take over what is to be copied; the blocks that are written hold junk from now on."""
        for copy in self.tiers.take_copies():
            if isinstance(copy, DiskDelete):
                for key in copy.keys:
                    self.copies.append((DiskDelete((key,)), 0))
                continue
            self.copies.append((copy, 0))
            if isinstance(copy, Offload | DiskRead):
                self.host |= dict.fromkeys(copy.host_block_ids, JUNK)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def copy_a_block(self, data: st.DataObject) -> None:
        idx = data.draw(st.integers(0, len(self.copies) - 1))
        copy, num_done = self.copies[idx]
        if not isinstance(copy, DiskDelete | DiskFind) and num_done < size(copy):
            self.copies[idx] = (copy, num_done + self.advance(copy, num_done))

    def advance(self, copy: Copy, num_done: int) -> bool:
        match copy:
            case Load():
                self.device[copy.device_block_ids[num_done]] = self.host[copy.host_block_ids[num_done]]
            case Offload():
                self.host[copy.host_block_ids[num_done]] = self.device[copy.device_block_ids[num_done]]
            case DiskWrite():
                self.disk[copy.keys[num_done]] = self.host[copy.host_block_ids[num_done]]
            case DiskRead():
                if copy.keys[num_done] not in self.disk:
                    return False
                self.host[copy.host_block_ids[num_done]] = self.disk[copy.keys[num_done]]
            case _:
                raise AssertionError(copy)
        return True

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), fails=st.booleans())
    def end_copy(self, data: st.DataObject, fails: bool) -> None:
        """A copy ends; disk writes and deletes do so in order, everything else in any."""
        idx = data.draw(st.integers(0, len(self.copies) - 1))
        if isinstance(self.copies[idx][0], DiskWrite | DiskDelete):
            idx = next(i for i, (copy, _) in enumerate(self.copies) if isinstance(copy, DiskWrite | DiskDelete))
        self.finish(idx, fails=fails)

    def finish(self, idx: int, *, fails: bool) -> None:
        copy, num_done = self.copies.pop(idx)
        if isinstance(copy, DiskDelete):
            self.disk.pop(copy.keys[0], None)
            return
        if isinstance(copy, DiskFind):
            num_found = next((i for i, key in enumerate(copy.keys) if key not in self.disk), len(copy.keys))
            self.end(CopyEnd(copy.copy_id, num_found))
            return
        while not fails and num_done < size(copy) and self.advance(copy, num_done):
            num_done += 1
        failure = None if num_done == size(copy) else CopyFailure.IO if fails else CopyFailure.MISSING
        if failure and isinstance(copy, Load | Offload):
            num_done = 0
        self.end(CopyEnd(copy.copy_id, num_done, failure))

    def end(self, end: CopyEnd) -> None:
        self.now += 1
        self.tiers.end(end)
        sequence, num_shared = self.loading.pop(end.copy_id, (None, 0))
        if sequence is not None and end.failure is None:
            loaded = [self.device[each] for each in sequence.block_ids]
            assert loaded == prefixes(sequence.token_ids)[: len(loaded)], "a load brought the wrong blocks"
            self.insert(sequence, num_shared)
        self.take()

    @rule(data=st.data())
    def lose_a_file(self, data: st.DataObject) -> None:
        """Another worker needs its room, or the operator does."""
        if self.disk:
            del self.disk[data.draw(st.sampled_from(sorted(self.disk)))]

    @rule(token_ids=PROMPTS)
    def gain_files(self, token_ids: list[int]) -> None:
        """Another worker has computed the same."""
        for prefix in prefixes(token_ids):
            self.disk.setdefault(key_of(prefix), prefix)

    @invariant()
    def all_is_accounted_for(self) -> None:
        self.pool.check()
        self.tree.check()
        self.tiers.check()
        statistics = self.tiers.statistics()
        for tier in (self.pool.statistics(), statistics.host, statistics.disk):
            assert tier is None or tier.free + tier.held + tier.quarantined == tier.total

    @invariant()
    def whatever_can_be_found_is_right(self) -> None:
        assert all(key_of(content) == key for key, content in self.disk.items() if content != JUNK)
        assert JUNK not in self.disk.values()

    def teardown(self) -> None:
        """After everything has ended nobody but the indexes holds anything, and nobody waits."""
        if not hasattr(self, "tiers"):
            return
        while self.sequences:
            sequence = self.sequences.pop()
            self.pool.release(sequence.block_ids, sequence.holder)
        self.loading = {}
        while self.copies:
            self.finish(0, fails=False)
        statistics = self.tiers.statistics()
        for tier in (self.pool.statistics(), statistics.host, statistics.disk):
            assert tier is None or tier.held == tier.idle
        assert not statistics.num_prefetches
        assert self.tiers.is_settled


def size(copy: Copy) -> int:
    match copy:
        case Load() | Offload() | DiskRead() | DiskWrite():
            return len(copy.host_block_ids)
        case _:
            raise AssertionError(copy)


TiersMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestTiers = TiersMachine.TestCase
