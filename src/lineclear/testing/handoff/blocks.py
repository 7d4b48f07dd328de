"""The decode worker's block pool as a value: who holds each block.

The same calls as `lineclear.kv.pool.BlockPool`, each returning the pool after it; a test drives both alike. A block
with no holder is free. Which of several free blocks is handed out makes no difference to the handoff, so it is
always the first.
"""

from lineclear.kv.pool import Holder
from lineclear.testing.explorer import Violation

Blocks = tuple[frozenset[Holder], ...]


def try_allocate(blocks: Blocks, count: int, holder: Holder) -> tuple[Blocks, tuple[int, ...]] | None:
    """Take `count` free blocks for a holder; None if fewer are free."""
    free = tuple(block_id for block_id, holders in enumerate(blocks) if not holders)[:count]
    return None if len(free) < count else (_with(blocks, free, holder), free)


def acquire(blocks: Blocks, block_ids: tuple[int, ...], holder: Holder) -> Blocks:
    """Add a holder to held blocks.

    Raises: Violation if a block is held by nobody, or by this holder already.
    """
    if any(not blocks[block_id] or holder in blocks[block_id] for block_id in block_ids):
        raise Violation("P5: a hold is taken on a free block, or twice")
    return _with(blocks, block_ids, holder)


def release(blocks: Blocks, block_ids: tuple[int, ...], holder: Holder) -> Blocks:
    """End a holder's holds.

    Raises: Violation if it does not have them.
    """
    if any(holder not in blocks[block_id] for block_id in block_ids):
        raise Violation("P5: a hold ends that nobody has")
    return release_if_held(blocks, block_ids, holder)


def release_if_held(blocks: Blocks, block_ids: tuple[int, ...], holder: Holder) -> Blocks:
    """End those of a holder's holds that there are."""
    return tuple(holders - {holder} if block_id in block_ids else holders for block_id, holders in enumerate(blocks))


def _with(blocks: Blocks, block_ids: tuple[int, ...], holder: Holder) -> Blocks:
    return tuple(holders | {holder} if block_id in block_ids else holders for block_id, holders in enumerate(blocks))
