"""What sequences and the step's forward pass hold of the pool.

| block                          | held by                      | until                                      |
|--------------------------------|------------------------------|--------------------------------------------|
| of a running sequence's table  | the sequence                 | it ends, is preempted, or does not need it |
| that a step may write          | the sequence and the writer  | the writer: until commit, whatever happens |
| in the prefix tree             | the tree                     | evicted                                    |
| that a remote rank may write   | one writer for each rank     | that rank's proof                          |
| that is sent to another worker | the sequence and its reader  | the reader: until no write can read it     |
| that is loaded from the host   | the sequence and the load    | the load: until it ends (see `kv.tiers`)   |
| that is offloaded to the host  | whoever, and the offload     | the offload: until it ends                 |

Invariants:
    1. A block that a step may write is held by one sequence and the writer, and by nobody else: neither the tree nor
       another sequence can read what is being written.
    2. What a remote rank may write is held by such writers alone, until a sequence takes it over; what a load writes,
       by the load and at most the sequence that it is for.
    3. A sequence's blocks enter the tree when they are full, computed, and the token after them is known; if the tree
       has the same prefix already, the sequence takes over the tree's block and gives up its own.
"""

from collections.abc import Collection, Iterable
from typing import Final

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId
from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.radix import PrefixNode, RadixTree
from lineclear.kv.tiers import Tiers
from lineclear.schedule.sequence import Sequence


class Holdings:
    """Moves blocks between the pool, the tree, sequences and the writer."""

    def __init__(self, pool: BlockPool, tree: RadixTree, tiers: Tiers | None = None) -> None:
        self._tiers = tiers
        self.block_size: Final = tree.block_size
        self._pool = pool
        self._tree = tree
        self._writer = Holder(HolderKind.WRITER, 0)
        self._written: list[BlockId] = []
        self._remote: dict[Holder, list[BlockId]] = {}
        self._read: dict[Holder, list[BlockId]] = {}
        self._replaced: dict[Holder, list[BlockId]] = {}
        """Blocks that a reader holds beside those of its sequence's tokens."""

    @property
    def num_available(self) -> int:
        """Blocks that sequences can get: free ones and those that only the tree keeps."""
        return self._pool.num_free + self._tree.num_evictable_blocks

    @property
    def num_usable(self) -> int:
        """Blocks that a sequence alone on this worker could get."""
        return self._pool.num_usable

    def has_room_now(self, num_blocks: int) -> bool:
        """Whether so many available blocks can be had at once, or some of them only when offloads have ended."""
        if self._tiers is None or num_blocks <= self._pool.num_free:
            return True
        self._tiers.make_room(num_blocks)
        return num_blocks <= self._pool.num_free or not self.is_offloading

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks so many tokens take."""
        return -(-num_tokens // self.block_size)

    def take_prefix(self, sequence: Sequence, prefix: PrefixNode) -> None:
        """Let a sequence without blocks hold those of a prefix, and count their tokens as computed."""
        block_ids = self._tree.block_ids(prefix)
        self._pool.acquire(block_ids, sequence.holder)
        self._note_read(sequence, block_ids)
        sequence.block_table.extend(block_ids)
        sequence.prefix = prefix
        sequence.is_suspect = False
        sequence.num_computed_tokens = len(block_ids) * self.block_size

    def note_prefix_used(self, prefix: PrefixNode, now: int) -> None:
        """A sequence goes on from a prefix: that counts on the tiers below, too."""
        if self._tiers is not None:
            self._tiers.note_used(prefix, now)

    def load(self, sequence: Sequence) -> None:
        """Begin to load what the host has beyond a sequence's prefix, and count it as computed.

        Order: after `take_prefix`, with room for all of the sequence's tokens.
        """
        if self._tiers is None or sequence.prefix is None or sequence.avoids_tiers:
            return
        if not sequence.terms.uses_cache:
            return
        hit = self._tiers.find(sequence.prefix, sequence.tokens)
        block_ids = self._try_take(sequence, len(hit)) if hit else None
        if block_ids:
            sequence.load_id = self._tiers.begin_load(hit, block_ids, counts=not sequence.is_counted)
            sequence.loaded_keys = hit.keys
            sequence.num_computed_tokens += len(block_ids) * self.block_size

    @property
    def is_offloading(self) -> bool:
        """Whether blocks are held by offloads, which end by themselves."""
        return self._tiers is not None and bool(self._tiers.device_readers())

    def give_back_prefix(self, sequence: Sequence) -> None:
        """Undo `take_prefix`, before anything else was done: its reader has read nothing either."""
        self.drop(sequence)
        if sequence.reader is not None:
            self.end_read(sequence.reader)

    def extend_towards(self, sequence: Sequence, num_tokens: int) -> int:
        """Let a sequence's table cover as many of `num_tokens` as there is room for; return how many."""
        if num_tokens <= len(sequence.block_table) * self.block_size:
            return num_tokens
        num_missing = self.num_blocks_for(num_tokens) - len(sequence.block_table)
        self._try_take(sequence, min(num_missing, self.num_available))
        return min(num_tokens, len(sequence.block_table) * self.block_size)

    def trim(self, sequence: Sequence) -> None:
        """Give up what a sequence does not need for the tokens it has."""
        num_needed = self.num_blocks_for(sequence.num_tokens)
        if len(sequence.block_table) > num_needed:
            self._pool.release(sequence.block_table.cut(num_needed), sequence.holder)

    def drop(self, sequence: Sequence) -> None:
        """Give up all of a sequence's blocks; nothing of it counts as computed any more.

        What remote writers and readers, loads and offloads hold for it is theirs.
        """
        sequence.load_id = None
        sequence.loaded_keys = ()
        self._pool.release(sequence.block_table.cut(0), sequence.holder)
        sequence.received_block_ids = []
        sequence.num_computed_tokens = 0

    def reserve(self, sequence: Sequence, writers: Collection[Holder]) -> bool:
        """Take the blocks that a sequence lacks for all its tokens, for remote writers; whether there was room."""
        block_ids = self._try_allocate(self.num_blocks_for(sequence.num_tokens) - len(sequence.block_table), writers)
        if block_ids is None:
            return False
        sequence.received_block_ids = block_ids
        self._remote |= {writer: list(block_ids) for writer in writers}
        for writer in writers:
            self._pool.note_writer(writer, sequence.sequence_id)
        return True

    def take_received(self, sequence: Sequence) -> None:
        """Let a sequence hold what remote writers have written for it, beside them, and count it as computed."""
        self._pool.acquire(sequence.received_block_ids, sequence.holder)
        sequence.block_table.extend(sequence.received_block_ids)
        sequence.received_block_ids = []
        sequence.num_computed_tokens = sequence.num_tokens - 1

    def end_remote_write(self, writer: Holder) -> None:
        """End a remote writer's holds: it is proven that it can write no more."""
        self._pool.release(self._remote.pop(writer), writer)

    def blocks_read(self, reader: Holder) -> list[BlockId]:
        """The blocks that a reader holds, in the order of its sequence's tokens."""
        return self._read[reader]

    def end_read(self, reader: Holder) -> None:
        """End a reader's holds, if it has any: no write can read them any more."""
        self._pool.release((*self._read.pop(reader, ()), *self._replaced.pop(reader, ())), reader)

    def publish(self, sequence: Sequence, now: int) -> None:
        """Offer a sequence's newly computed full blocks to the tree (invariant 2)."""
        if not self._tree.keeps or sequence.load_id is not None or sequence.is_suspect:
            return
        prefix = sequence.prefix
        if prefix is None:
            raise InvariantError(f"sequence {sequence.sequence_id} is published before it is admitted")
        num_blocks = min(sequence.num_computed_tokens, sequence.num_tokens - 1) // self.block_size
        if num_blocks <= prefix.num_blocks:
            return
        if not sequence.terms.uses_cache and self._tree.has_next(prefix, sequence.tokens):
            sequence.is_suspect = True  # the tree's blocks are not its own, and it must not read them
            return
        block_ids = sequence.block_table.span(prefix.num_blocks, num_blocks)
        sequence.prefix = self._tree.insert(prefix, sequence.tokens, block_ids, now, sequence.loaded_keys)
        sequence.loaded_keys = ()
        if self._tiers is not None:
            self._tiers.note_inserted(prefix, sequence.prefix, now)
        self._adopt(sequence, sequence.prefix, len(block_ids))

    def begin_write(self, spans: Iterable[tuple[Sequence, int]]) -> None:
        """Let the writer hold the blocks of sequences, of each from a position on."""
        for sequence, start in spans:
            table = sequence.block_table
            self._written += table.span(start // self.block_size, len(table))
        self._pool.acquire(self._written, self._writer)

    def end_write(self) -> None:
        """End all holds of the writer: the forward pass is over. The next one is a new writer."""
        self._pool.release(self._written, self._writer)
        self._written = []
        self._writer = Holder(HolderKind.WRITER, self._writer.id + 1)

    def check(self, sequences: Collection[Sequence]) -> None:
        """Check that every held block has a known holder, and that writers are alone with their sequences.

        `sequences` are those that run or receive.

        Raises: InvariantError if not. Cost: proportional to the pool.
        """
        self._check_writers()
        tables = {sequence.holder: set(sequence.block_table) for sequence in sequences}
        num_holds = 0
        for block_id, holders in self._pool.held_blocks():
            for holder in holders:
                if holder.kind is HolderKind.SEQUENCE:
                    num_holds += 1
                    is_known = block_id in tables.get(holder, ())
                    _require(is_known, f"block {block_id} is held by a sequence that does not have it: {holder}")
        num_in_tables = sum(len(sequence.block_table) for sequence in sequences)
        _require(num_holds == num_in_tables, "a block table has a block that its sequence does not hold")
        for sequence in sequences:
            self._check_prefix(sequence)

    def _check_writers(self) -> None:
        written = set(self._written)
        read = _by_block((*self._read.items(), *self._replaced.items()))
        expected = {HolderKind.WRITER: _by_block(self._remote.items()), HolderKind.READER: read}
        loaded: set[BlockId] = set()
        if self._tiers is not None:
            loads, offloads = self._tiers.device_writers(), self._tiers.device_readers()
            loaded.update(*loads.values())
            _add_by_block(expected[HolderKind.WRITER], loads.items())
            _add_by_block(expected[HolderKind.READER], offloads.items())
        for block_id in written:
            expected[HolderKind.WRITER].setdefault(block_id, set()).add(self._writer)
        for block_id, holders in self._pool.held_blocks():
            for kind, by_block in expected.items():
                found = {holder for holder in holders if holder.kind is kind}
                is_right = found == by_block.get(block_id, set())
                _require(is_right, f"block {block_id} has lost a {kind.name.lower()}, or has a stale one: {holders}")
            kinds = sorted(holder.kind for holder in holders if holder.kind is not HolderKind.READER)
            if HolderKind.WRITER in kinds:
                with_sequence = kinds == [HolderKind.SEQUENCE, HolderKind.WRITER]
                alone = kinds == [HolderKind.WRITER] * len(kinds)
                is_private = (
                    (with_sequence or alone) if block_id in loaded else with_sequence if block_id in written else alone
                )
                _require(is_private, f"block {block_id} is read while it is written: {holders}")

    def _check_prefix(self, sequence: Sequence) -> None:
        prefix = sequence.prefix
        if sequence.is_suspect:
            return
        _require(prefix is not None and prefix.is_alive, f"sequence {sequence.sequence_id} has lost its prefix")
        path = self._tree.block_ids(prefix) if prefix else []
        same = sequence.block_table.span(0, len(path)) == path
        _require(same, f"sequence {sequence.sequence_id} does not use the blocks of its prefix")

    def _try_take(self, sequence: Sequence, num_blocks: int) -> list[BlockId] | None:
        block_ids = self._try_allocate(num_blocks, (sequence.holder,))
        if block_ids is not None:
            self._note_read(sequence, block_ids)
            sequence.block_table.extend(block_ids)
        return block_ids

    def _try_allocate(self, num_blocks: int, holders: Collection[Holder]) -> list[BlockId] | None:
        """Blocks that all these holders hold, some of them taken from the tree; None if there are too few."""
        num_short = num_blocks - self._pool.num_free
        if num_short > self._tree.num_evictable_blocks:
            return None
        if num_short > 0:
            self._make_room(num_blocks)
            if num_blocks > self._pool.num_free:
                return None
        first, *others = holders
        block_ids = self._pool.try_allocate(num_blocks, first)
        for holder in others:
            self._pool.acquire(block_ids or (), holder)
        return block_ids

    def _make_room(self, num_blocks: int) -> None:
        if self._tiers is None:
            self._tree.evict(num_blocks - self._pool.num_free)
        else:
            self._tiers.make_room(num_blocks)

    def _note_read(self, sequence: Sequence, block_ids: list[BlockId]) -> None:
        if sequence.reader is not None:
            self._pool.acquire(block_ids, sequence.reader)
            self._read.setdefault(sequence.reader, []).extend(block_ids)

    def _read_instead(self, sequence: Sequence, index: int, block_id: BlockId) -> None:
        """A sequence's own block gave way to the tree's. The reader keeps both: a write may be reading the own one."""
        if sequence.reader is not None:
            self._pool.acquire((block_id,), sequence.reader)
            self._replaced.setdefault(sequence.reader, []).append(self._read[sequence.reader][index])
            self._read[sequence.reader][index] = block_id

    def _adopt(self, sequence: Sequence, node: PrefixNode, num_blocks: int) -> None:
        table = sequence.block_table
        for _ in range(num_blocks):
            index = node.num_blocks - 1
            own, shared = table[index], node.block_id
            if shared is None or node.parent is None:
                raise InvariantError(f"sequence {sequence.sequence_id} has a prefix shorter than what it published")
            if shared != own:
                self._pool.acquire((shared,), sequence.holder)
                self._pool.release((own,), sequence.holder)
                table[index] = shared
                self._read_instead(sequence, index, shared)
            node = node.parent


def _by_block(held: Iterable[tuple[Holder, Iterable[BlockId]]]) -> dict[BlockId, set[Holder]]:
    by_block: dict[BlockId, set[Holder]] = {}
    _add_by_block(by_block, held)
    return by_block


def _add_by_block(by_block: dict[BlockId, set[Holder]], held: Iterable[tuple[Holder, Iterable[BlockId]]]) -> None:
    for holder, block_ids in held:
        for block_id in block_ids:
            by_block.setdefault(block_id, set()).add(holder)


def _require(ok: bool, broken: str) -> None:
    if not ok:
        raise InvariantError(f"holdings: {broken}")
