"""The pool against plain sets, the prefix tree against a dict of prefixes."""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.radix import TREE_HOLDER, RadixTree

OTHERS = [HolderKind.SEQUENCE, HolderKind.WRITER, HolderKind.READER]
HOLDERS = st.builds(Holder, st.sampled_from(OTHERS), st.integers(0, 2)) | st.just(TREE_HOLDER)


class PoolMachine(RuleBasedStateMachine):
    """The model: a set of holders for each block, and three sets of blocks."""

    @initialize(num_blocks=st.integers(1, 8))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.free = list(range(num_blocks))
        self.held = {}
        self.marked = set()
        self.quarantined = set()

    @rule(count=st.integers(0, 4), holder=HOLDERS)
    def allocate(self, count: int, holder: Holder) -> None:
        got = self.pool.try_allocate(count, holder)
        if count > len(self.free):
            assert got is None
            return
        expected, self.free = sorted(self.free[:count]), self.free[count:]
        assert got == expected
        self.held |= {block_id: {holder} for block_id in got}

    @rule(data=st.data(), holder=HOLDERS)
    def acquire(self, data: st.DataObject, holder: Holder) -> None:
        possible = sorted(block_id for block_id, holders in self.held.items() if holder not in holders)
        blocks = data.draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
        self.pool.acquire(blocks, holder)
        for block_id in blocks:
            self.held[block_id].add(holder)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holders = sorted({holder for some in self.held.values() for holder in some})
        if not holders:
            return
        holder = data.draw(st.sampled_from(holders))
        possible = sorted(block_id for block_id, some in self.held.items() if holder in some)
        blocks = data.draw(st.lists(st.sampled_from(possible), unique=True))
        self.pool.release(blocks, holder)
        for block_id in blocks:
            self.held[block_id].remove(holder)
            if not self.held[block_id]:
                del self.held[block_id]
                self._retire(block_id)

    def _retire(self, block_id: int) -> None:
        if block_id in self.marked:
            self.marked.remove(block_id)
            self.quarantined.add(block_id)
        else:
            self.free.append(block_id)

    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True)) if self.held else []
        self.pool.quarantine(blocks)
        self.marked |= set(blocks)

    @rule(data=st.data())
    def release_quarantine(self, data: st.DataObject) -> None:
        possible = sorted(self.quarantined | self.marked)
        blocks = data.draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
        self.pool.release_quarantine(blocks)
        self.free += [block_id for block_id in blocks if block_id in self.quarantined]
        self.quarantined -= set(blocks)
        self.marked -= set(blocks)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert self.pool.num_free == len(self.free)
        assert {block_id: set(holders) for block_id, holders in self.pool.held_blocks()} == self.held
        statistics = self.pool.statistics()
        assert statistics.free + statistics.held + statistics.quarantined == statistics.total
        assert statistics.quarantined == len(self.quarantined)
        idle = {block_id for block_id, holders in self.held.items() if holders == {TREE_HOLDER}}
        assert {block_id for block_id in self.held if self.pool.is_idle(block_id)} == idle
        assert self.pool.num_idle == len(idle)


BLOCK_SIZE = 2
KNOWN = st.lists(st.integers(0, 2), min_size=1, max_size=11)


class TreeMachine(RuleBasedStateMachine):
    """The model: a dict from the tokens of a prefix, follower included, to its block and its time of last use."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.tree = RadixTree(self.pool, BLOCK_SIZE)
        self.known = {}
        self.last_used = {}
        self.sequences = {}
        self.now = 0

    def prefixes(self, token_ids: list[int]) -> list[tuple[int, ...]]:
        ends = range(BLOCK_SIZE, len(token_ids), BLOCK_SIZE)
        return [tuple(token_ids[: end + 1]) for end in ends]

    def model_match(self, token_ids: list[int]) -> list[tuple[int, ...]]:
        found = []
        for prefix in self.prefixes(token_ids):
            if prefix not in self.known:
                break
            found.append(prefix)
        return found

    def use(self, path: list[tuple[int, ...]]) -> None:
        for prefix in path:
            self.last_used[prefix] = self.now

    @rule(token_ids=KNOWN)
    def match(self, token_ids: list[int]) -> None:
        self.now += 1
        found = self.model_match(token_ids)
        node = self.tree.match(array("I", token_ids), self.now)
        assert self.tree.block_ids(node) == [self.known[prefix] for prefix in found]
        assert node.num_blocks <= (len(token_ids) - 1) // BLOCK_SIZE
        self.use(found)

    @rule(token_ids=KNOWN, num_stages=st.integers(1, 3))
    def compute(self, token_ids: list[int], num_stages: int) -> None:
        """A sequence takes what there is, computes the rest and inserts it in stages; it goes on holding its blocks."""
        self.now += 1
        tokens = array("I", token_ids)
        holder = Holder(HolderKind.SEQUENCE, self.now)
        node = self.tree.match(tokens, self.now)
        shared = self.tree.block_ids(node)
        prefixes = self.prefixes(token_ids)
        self.use(prefixes[: len(shared)])
        self.pool.acquire(shared, holder)
        own = self.pool.try_allocate(len(prefixes) - len(shared), holder)
        self.sequences[holder] = shared + (own or [])
        for start in range(0, len(own or []), num_stages):
            stage = own[start : start + num_stages]
            node = self.tree.insert(node, tokens, stage, self.now)
            self.use(prefixes[: node.num_blocks])
        for prefix, block_id in zip(prefixes[len(shared) :], own or [], strict=False):
            self.known[prefix] = block_id

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.sequences:
            holder = data.draw(st.sampled_from(sorted(self.sequences)))
            self.pool.release(self.sequences.pop(holder), holder)

    @rule(num_blocks=st.integers(1, 4))
    def evict(self, num_blocks: int) -> None:
        """Each block that goes is, in the model too, a leaf that nobody uses and the least recently used of those."""
        for _ in range(num_blocks):
            victims = [prefix for prefix in self.known if self.is_evictable(prefix)]
            assert self.tree.evict(1) == bool(victims)
            if not victims:
                return
            gone = [prefix for prefix, block_id in self.known.items() if not self.pool.holders(block_id)]
            assert len(gone) == 1
            assert gone[0] in victims
            assert self.last_used[gone[0]] == min(self.last_used[prefix] for prefix in victims)
            del self.known[gone[0]]

    @rule(token_ids=KNOWN)
    def forget(self, token_ids: list[int]) -> None:
        """All that shares the prefix's first block goes, whoever holds it."""
        self.now += 1
        found = self.model_match(token_ids)
        self.use(found)
        suspect = [p for p in self.known if found and p[: len(found[0])] == found[0]]
        assert self.tree.forget(self.tree.match(array("I", token_ids), self.now)) == len(suspect)
        for prefix in suspect:
            del self.known[prefix]

    @rule()
    def evict_all(self) -> None:
        in_use = {block_id for blocks in self.sequences.values() for block_id in blocks}
        expected = {prefix: block_id for prefix, block_id in self.known.items() if block_id in in_use}
        assert self.tree.evict(self.pool.num_blocks) == len(self.known) - len(expected)
        self.known = expected

    def is_evictable(self, prefix: tuple[int, ...]) -> bool:
        length = len(prefix) + BLOCK_SIZE
        has_child = any(len(other) == length and other[: len(prefix)] == prefix for other in self.known)
        return not has_child and self.pool.holders(self.known[prefix]) == (TREE_HOLDER,)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        self.tree.check()
        assert self.tree.statistics().num_nodes == len(self.known)
        in_use = {block_id for blocks in self.sequences.values() for block_id in blocks}
        assert self.tree.num_evictable_blocks == len(set(self.known.values()) - in_use)


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TreeMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPool = PoolMachine.TestCase
TestTree = TreeMachine.TestCase
