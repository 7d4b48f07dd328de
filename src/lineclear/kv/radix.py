"""The prefix tree: which blocks hold the KV of which token prefixes, so that later sequences need not compute them.

One node a block. The edge to a child is named by the block's tokens *and* the token that follows them: the draft
layer's cache at a position depends on the next token, so a block is the same only if its follower is. A path from the
root is a prefix:

    root ──[t0 … t15 | t16]──▶ node, block 7 ──[t16 … t31 | t32]──▶ node, block 2

Invariants:
    1. The tree holds the block of each node (kind TREE) and no other block; no two nodes share one.
    2. A node's KV is computed for all layers, the draft layer included, before the node exists.
    3. A sequence that holds a node's block holds the blocks of all its ancestors. Hence if a block is idle, held by
       the tree alone, so are those of all nodes under it, and `num_idle` of the pool is what eviction can free.
    4. Each idle leaf is in the heap of candidates or among the pool's newly idle blocks; each node is in the heap at
       most once.

Least recently used goes first. Only the deepest node of a match or an insertion is stamped; when a leaf goes, its
parent inherits the stamp, because whoever used the leaf used the parent as well.

Driven by the scheduler, which passes a logical clock. A PrefixNode serves as a cursor: a sequence that holds its path
keeps it alive and goes on from there, so each block of a prompt is looked at once.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from lineclear.base.errors import InvariantError
from lineclear.base.ids import BlockId
from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.prefix_key import PrefixKey, child_key

TREE_HOLDER: Final = Holder(HolderKind.TREE, 0)

_TOKEN_BYTES: Final = array("I").itemsize


class PrefixNode:
    """A prefix of `num_blocks` whole blocks, and where the KV of the last of them is."""

    __slots__ = (
        "block_id",
        "children",
        "is_alive",
        "is_candidate",
        "key",
        "last_used",
        "num_blocks",
        "parent",
        "prefix_key",
        "serial",
    )

    def __init__(self, parent: "PrefixNode | None", key: bytes, block_id: BlockId | None, serial: int) -> None:
        self.parent = parent
        self.key = key
        self.block_id = block_id
        """None for the root alone, which is the empty prefix."""
        self.serial = serial
        self.num_blocks: int = parent.num_blocks + 1 if parent else 0
        self.children: dict[bytes, PrefixNode] = {}
        self.last_used = 0
        self.is_alive = True
        self.is_candidate = False
        self.prefix_key: PrefixKey | None = None
        """The prefix's name in other tiers, once somebody has asked for it."""

    def __repr__(self) -> str:
        return f"PrefixNode(num_blocks={self.num_blocks}, block_id={self.block_id}, is_alive={self.is_alive})"


@dataclass(frozen=True, slots=True)
class TreeStatistics:
    """The tree's size, and totals since it was made."""

    num_nodes: int
    num_evictable_blocks: int
    num_inserted: int
    num_evicted: int


class RadixTree:
    """Finds the longest known prefix of a token list; keeps blocks until they are needed elsewhere.

    Args:
        pool: whose blocks it keeps.
        block_size: tokens of a block.
        keeps: without it nothing is published here: nobody finds a prefix, and nobody is told to wait for one.
    """

    def __init__(self, pool: BlockPool, block_size: int, *, keeps: bool = True) -> None:
        if block_size < 1:
            raise InvariantError(f"block_size: got {block_size}, allowed: at least 1")
        self.block_size: Final = block_size
        self.keeps: Final = keeps
        self._pool = pool
        self._root = PrefixNode(None, b"", None, 0)
        self._nodes: dict[BlockId, PrefixNode] = {}
        self._candidates: list[tuple[int, int, PrefixNode]] = []
        self._num_inserted = 0
        self._num_evicted = 0
        self._step_bytes = block_size * _TOKEN_BYTES
        self._key_bytes = self._step_bytes + _TOKEN_BYTES

    @property
    def root(self) -> PrefixNode:
        """The empty prefix, where every cursor starts."""
        return self._root

    @property
    def num_evictable_blocks(self) -> int:
        """What eviction can free; an upper bound if somebody other than a sequence holds blocks of the tree."""
        return self._pool.num_idle

    def match(self, tokens: "array[int]", now: int, start: PrefixNode | None = None) -> PrefixNode:
        """Find the longest known prefix, at most (len - 1) // block_size blocks: the last token is never among them.

        `start` is a node of an earlier match of the same tokens; if it is gone, the search goes on from its nearest
        ancestor that is left. The caller acquires `block_ids(node)` before anything can be evicted.

        Mutates: the node's time of last use.
        """
        node = _nearest_alive(start or self._root)
        skipped = node.num_blocks * self.block_size
        data = tokens[skipped:].tobytes()
        step_bytes, key_bytes = self._step_bytes, self._key_bytes
        offset = 0
        while True:
            # A key that the end of the data cuts short names no child.
            child = node.children.get(data[offset : offset + key_bytes])
            if child is None:
                break
            node = child
            offset += step_bytes
        node.last_used = now
        return node

    def block_ids(self, node: PrefixNode) -> list[BlockId]:
        """Return the blocks of a prefix, first to last."""
        block_ids: list[BlockId] = []
        while node.parent is not None and node.block_id is not None:
            block_ids.append(node.block_id)
            node = node.parent
        block_ids.reverse()
        return block_ids

    def node_of(self, block_id: BlockId) -> PrefixNode | None:
        """Return the prefix whose last block this is."""
        return self._nodes.get(block_id)

    def prefix_key(self, node: PrefixNode) -> PrefixKey | None:
        """Return a prefix's name in other tiers; None for the empty prefix. Cost: O(1) once its parent has a name."""
        nameless: list[PrefixNode] = []
        while node.prefix_key is None and node.parent is not None:
            nameless.append(node)
            node = node.parent
        key = node.prefix_key
        for each in reversed(nameless):
            key = each.prefix_key = child_key(key, each.key)
        return key

    def prefix_keys_after(self, node: PrefixNode, tokens: "array[int]") -> Iterator[PrefixKey]:
        """Name, one after the other, the longer prefixes of `tokens` that a match could find.

        Cost: a digest for each that is taken.
        """
        key = self.prefix_key(node)
        data = tokens[node.num_blocks * self.block_size :].tobytes()
        for offset in range(0, len(data) - self._key_bytes + 1, self._step_bytes):
            key = child_key(key, data[offset : offset + self._key_bytes])
            yield key

    def next_key(self, node: PrefixNode, tokens: "array[int]") -> bytes | None:
        """Return the name of the edge by which `tokens` leave a prefix of theirs; None if there will be none."""
        if not self.keeps:
            return None
        start = node.num_blocks * self.block_size
        end = start + self.block_size + 1
        return tokens[start:end].tobytes() if end <= len(tokens) else None

    def has_next(self, node: PrefixNode, tokens: "array[int]") -> bool:
        """Whether the tree has `tokens` for one block longer than a prefix of theirs."""
        start = node.num_blocks * self.block_size
        return tokens[start : start + self.block_size + 1].tobytes() in node.children

    def insert(
        self,
        node: PrefixNode,
        tokens: "array[int]",
        block_ids: Sequence[BlockId],
        now: int,
        prefix_keys: Sequence[PrefixKey] = (),
    ) -> PrefixNode:
        """Add computed blocks under a node and return the last node of their path.

        `tokens` are all the tokens of the prefix: those before the node, those of the blocks, and the one that follows.
        A prefix that is there already keeps its own block: compare `block_ids(returned)` with those given. Names that
        are known already, of the first blocks, need not be made again.

        Owns: the tree acquires a hold on each block it adds.
        Raises: InvariantError if the node is gone or the token after the last block is missing.
        """
        end = (node.num_blocks + len(block_ids)) * self.block_size
        if not node.is_alive or len(tokens) <= end:
            raise InvariantError(f"insert: {node} with {len(block_ids)} blocks and {len(tokens)} tokens")
        data = tokens[node.num_blocks * self.block_size : end + 1].tobytes()
        offset, num_known = 0, 0
        while num_known < len(block_ids) and (child := node.children.get(data[offset : offset + self._key_bytes])):
            node, offset, num_known = child, offset + self._step_bytes, num_known + 1
        added = block_ids[num_known:]
        self._pool.acquire(added, TREE_HOLDER)
        for idx, block_id in enumerate(added, num_known):
            node = self._add(node, data[offset : offset + self._key_bytes], block_id)
            offset += self._step_bytes
            if idx < len(prefix_keys):
                node.prefix_key = prefix_keys[idx]
        node.last_used = now
        return node

    def evict(self, num_blocks: int) -> int:
        """Give up the least recently used idle leaves until `num_blocks` blocks are free or none is left.

        Returns: the number of blocks that became free. Cost: O(log n) a block.
        """
        before = self._pool.num_free
        while self._pool.num_free - before < num_blocks and (node := self.coldest()) is not None:
            self.remove(node)
        return self._pool.num_free - before

    def coldest(self) -> PrefixNode | None:
        """Return what eviction would give up next: the least recently used idle leaf. Cost: O(log n)."""
        self._collect_candidates()
        while self._candidates:
            last_used, _, node = self._candidates[0]
            if last_used == node.last_used and self._is_evictable(node):
                return node
            heappop(self._candidates)
            node.is_candidate = False
            self._offer(node)
        return None

    def remove(self, node: PrefixNode) -> None:
        """Give up a leaf; its block is free once nobody else holds it.

        Raises: InvariantError if it is the root, or no leaf.
        """
        parent, block_id = node.parent, node.block_id
        if parent is None or block_id is None or node.children:
            raise InvariantError(f"{node} is no leaf of the tree")
        del parent.children[node.key]
        del self._nodes[block_id]
        node.is_alive = False
        self._num_evicted += 1
        self._pool.release((block_id,), TREE_HOLDER)
        parent.last_used = max(parent.last_used, node.last_used)
        self._offer(parent)

    def forget(self, node: PrefixNode) -> int:
        """Give up a prefix and everything beyond any part of it, whoever holds it: nobody finds it any more.

        For KV that is suspect: whoever comes later computes it anew. What sequences hold is theirs alone from then on,
        until they end.

        Returns: the number of blocks given up. Cost: proportional to the tree under the prefix's first block.
        """
        while node.num_blocks > 1 and node.parent is not None:
            node = node.parent
        self._collect_candidates()
        nodes = list(self._walk(node)) if node.parent is not None and node.is_alive else []
        for each in reversed(nodes):
            self.remove(each)
        self._candidates = [candidate for candidate in self._candidates if candidate[2].is_alive]
        heapify(self._candidates)
        return len(nodes)

    def forget_family(self, tokens: "array[int]") -> int:
        """Give up all that begins with the same first block as `tokens`, as `forget` does."""
        child = self._root.children.get(tokens[: self.block_size + 1].tobytes())
        return 0 if child is None else self.forget(child)

    def statistics(self) -> TreeStatistics:
        """Return the tree's size and totals."""
        return TreeStatistics(len(self._nodes), self.num_evictable_blocks, self._num_inserted, self._num_evicted)

    def check(self) -> None:
        """Walk the tree.

        Raises: InvariantError if an invariant does not hold. Cost: proportional to the tree.
        """
        self._collect_candidates()
        num_nodes = 0
        for node in self._walk():
            num_nodes += 1
            parent, block_id = node.parent, node.block_id
            _require(parent is not None and parent.children.get(node.key) is node, f"{node} is not its parent's child")
            _require(parent is not None and node.num_blocks == parent.num_blocks + 1, f"the depth of {node} is wrong")
            _require(block_id is not None and self._nodes.get(block_id) is node, f"{node} shares its block")
            _require(block_id is not None and TREE_HOLDER in self._pool.holders(block_id), f"{node} is not held")
            _require(node.is_alive, f"{node} is in the tree and gone")
            if node.prefix_key is not None and parent is not None:
                _require(node.prefix_key == child_key(parent.prefix_key, node.key), f"{node} has a wrong name")
            _require(node.is_candidate or not self._is_evictable(node), f"{node} is idle and would never be evicted")
        _require(num_nodes == len(self._nodes), "a block is kept for a node that is gone")
        num_holds = self._pool.statistics().holds_by_kind[HolderKind.TREE]
        _require(num_nodes == num_holds, "the tree holds a block that is in no node")
        candidates = [node for _, _, node in self._candidates]
        _require(all(node.is_candidate for node in candidates), "a candidate does not know that it is one")
        _require(len({id(node) for node in candidates}) == len(candidates), "a node is a candidate twice")

    def _add(self, parent: PrefixNode, key: bytes, block_id: BlockId) -> PrefixNode:
        self._num_inserted += 1
        node = PrefixNode(parent, key, block_id, self._num_inserted)
        parent.children[key] = node
        self._nodes[block_id] = node
        return node

    def _collect_candidates(self) -> None:
        for block_id in self._pool.take_newly_idle():
            node = self._nodes.get(block_id)
            if node is not None:
                self._offer(node)

    def _offer(self, node: PrefixNode) -> None:
        if not node.is_candidate and self._is_evictable(node):
            node.is_candidate = True
            heappush(self._candidates, (node.last_used, node.serial, node))

    def _is_evictable(self, node: PrefixNode) -> bool:
        return node.is_alive and not node.children and node.block_id is not None and self._pool.is_idle(node.block_id)

    def _walk(self, *tops: PrefixNode) -> Iterator[PrefixNode]:
        """Every node under and including the given ones, parents before children; without any, the whole tree."""
        stack = list(tops or self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def _nearest_alive(node: PrefixNode) -> PrefixNode:
    while not node.is_alive and node.parent is not None:
        node = node.parent
    return node


def _require(ok: bool, broken: str) -> None:
    if not ok:
        raise InvariantError(f"prefix tree: {broken}")
