"""The book of holds: bounded, in order, and it remembers whose a block was before."""

from lineclear.base.ids import BlockId, SequenceId
from lineclear.kv.holds import HISTORY_LIMIT, OWNERS, HoldBook
from lineclear.kv.kv_fault import KvFault, KvFaultKind
from lineclear.kv.pool import BlockPool, Holder, HolderKind

FIRST, SECOND = Holder(HolderKind.SEQUENCE, 1), Holder(HolderKind.SEQUENCE, 2)
REMOTE = Holder(HolderKind.WRITER, 77)


def watched_pool(num_blocks: int = 2) -> tuple[BlockPool, HoldBook]:
    book = HoldBook()
    return BlockPool(num_blocks, book), book


def test_a_reused_block_names_both_owners() -> None:
    pool, book = watched_pool(1)
    (block_id,) = pool.try_allocate(1, FIRST) or ()
    pool.release([block_id], FIRST)
    assert book.owners(block_id) == (FIRST,)
    pool.try_allocate(1, SECOND)
    assert (book.previous_owners(block_id), book.owners(block_id)) == ((FIRST,), (SECOND,))
    verbs = [(event.verb, event.holder) for event in book.history(block_id)]
    assert verbs == [("allocated", FIRST), ("released", FIRST), ("freed", None), ("allocated", SECOND)]
    ticks = [event.tick for event in book.history(block_id)]
    assert ticks == sorted(set(ticks))


def test_allocations_are_counted_as_the_pool_counts_them() -> None:
    pool, book = watched_pool(3)
    for _ in range(4):
        block_ids = pool.try_allocate(2, FIRST) or []
        assert [book.allocation(each) for each in block_ids] == [pool.allocation(each) for each in block_ids]
        pool.release(block_ids, FIRST)


def test_a_remote_writer_is_named_with_the_sequence_that_it_writes_for() -> None:
    pool, book = watched_pool()
    block_ids = pool.try_allocate(1, REMOTE) or []
    pool.note_writer(REMOTE, SequenceId(9))
    assert book.named(book.owners(block_ids[0])[0]) == "writer 77 for sequence 9"
    assert book.described_history(block_ids[0]) == ("1 allocated by writer 77 for sequence 9",)


def test_passes_do_not_push_out_the_sequence() -> None:
    pool, book = watched_pool(1)
    (block_id,) = pool.try_allocate(1, FIRST) or ()
    for number in range(10 * HISTORY_LIMIT):
        writer = Holder(HolderKind.WRITER, number)
        pool.acquire([block_id], writer)
        pool.release([block_id], writer)
    assert FIRST in book.owners(block_id)
    assert len(book.owners(block_id)) == OWNERS
    assert len(book.history(block_id)) == HISTORY_LIMIT


def test_a_block_that_leaves_quarantine_is_freed_then_and_not_before() -> None:
    pool, book = watched_pool(1)
    (block_id,) = pool.try_allocate(1, FIRST) or ()
    pool.quarantine([block_id])
    pool.release([block_id], FIRST)
    assert book.history(block_id)[-1].verb == "released"
    pool.release_quarantine([block_id])
    assert book.history(block_id)[-1].verb == "freed"


def test_a_fault_says_everything_in_words() -> None:
    fault = KvFault(
        KvFaultKind.WRITE_AFTER_SEAL,
        "device",
        BlockId(7),
        12,
        ((3, "index"), (3, "latent")),
        "sweep",
        ("sequence 2",),
        ("sequence 1", "writer 77 for sequence 1"),
        ("4 freed", "5 allocated by sequence 2"),
    )
    assert fault.text() == (
        "write_after_seal: device block 7 (allocation 12), layer 3 index, layer 3 latent; found by sweep; "
        "now of sequence 2; before of sequence 1, writer 77 for sequence 1; history: 4 freed; 5 allocated by sequence 2"
    )
