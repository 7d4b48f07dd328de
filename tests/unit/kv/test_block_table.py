from array import array

from lineclear.kv.block_table import BlockTable


def test_a_table_grows_and_is_cut_from_its_end() -> None:
    table = BlockTable([5, 6, 7])
    table.extend([8])
    assert list(table) == [5, 6, 7, 8]
    assert table.cut(1) == [6, 7, 8]
    assert list(table) == [5]
    assert table.cut(1) == []
    assert len(table) == 1


def test_spans_and_replacement() -> None:
    table = BlockTable([5, 6, 7])
    table[1] = 9
    assert table[1] == 9
    assert table.span(1, 3) == [9, 7]
    assert table.span(3, 3) == []
    assert repr(table) == "BlockTable([5, 9, 7])"


def test_a_packed_copy_does_not_follow_the_table() -> None:
    table = BlockTable([5, 6, 7])
    packed = table.packed()
    view = memoryview(packed)
    table.extend([8])
    assert packed == array("q", [5, 6, 7])
    assert view.itemsize == 8
    assert table.packed(2) == array("q", [5, 6])
