from array import array

from lineclear.kv.pool import BlockPool, Holder, HolderKind
from lineclear.kv.prefix_key import FAMILY_BYTES, KEY_BYTES, child_key, family_of
from lineclear.kv.radix import RadixTree


def test_a_key_depends_on_every_token_before_it_and_on_the_order() -> None:
    first, other = child_key(None, b"first"), child_key(None, b"other")
    keys = {first, other, child_key(first, b"next"), child_key(other, b"next"), child_key(first, b"first")}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {KEY_BYTES}


def test_a_family_is_all_that_has_the_same_first_block() -> None:
    first = child_key(None, b"first")
    child = child_key(first, b"next")
    assert family_of(child) == family_of(child_key(child, b"x")) == family_of(first) == first[:FAMILY_BYTES]
    assert family_of(child_key(None, b"other")) != family_of(first)


def test_a_node_of_the_tree_has_the_name_that_its_tokens_have() -> None:
    pool = BlockPool(4)
    tree = RadixTree(pool, 2)
    tokens = array("I", range(9))
    names = list(tree.prefix_keys_after(tree.root, tokens))
    assert len(names) == 4
    block_ids = pool.try_allocate(3, Holder(HolderKind.SEQUENCE, 1))
    assert block_ids is not None
    node = tree.insert(tree.root, tokens, block_ids, 1)
    assert tree.prefix_key(node) == names[2]
    assert node.parent is not None
    assert tree.prefix_key(node.parent) == names[1]
    assert list(tree.prefix_keys_after(node, tokens)) == names[3:]
    assert tree.prefix_key(tree.root) is None
