import ctypes
import mmap
import os
from pathlib import Path

import pytest
import torch

from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.pages import Alias, Pages

SIZE = 64 * 1024


def num_mappings(pages: Pages) -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(pages.name)


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_pages_are_zero_and_have_a_size_that_stays() -> None:
    pages = Pages(SIZE)
    assert pages.buffer == bytes(SIZE)
    for size in (SIZE // 2, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(pages.fd, size)
    pages.close()


def test_an_alias_means_the_same_pages_until_it_is_detached() -> None:
    pages = Pages(SIZE)
    alias = Alias(pages)
    ctypes.memset(alias.address + 100, 7, 3)
    assert bytes(pages.buffer[99:104]) == b"\0\7\7\7\0"
    alias.detach()
    ctypes.memset(alias.address, 9, SIZE)
    assert bytes(pages.buffer[99:104]) == b"\0\7\7\7\0"
    pages.close()


def test_two_aliases_are_detached_one_by_one() -> None:
    pages = Pages(SIZE)
    first, second = Alias(pages), Alias(pages)
    first.detach()
    ctypes.memset(first.address, 1, 1)
    ctypes.memset(second.address + 1, 2, 1)
    assert bytes(pages.buffer[:2]) == b"\0\2"
    second.detach()
    pages.close()


def test_nothing_is_left_behind() -> None:
    before = num_descriptors()
    pages = Pages(SIZE)
    alias = Alias(pages)
    alias.detach()
    pages.close()
    pages.close()
    assert num_mappings(pages) == 0
    assert num_descriptors() == before


def test_views_keep_the_pages() -> None:
    pages = Pages(SIZE)
    view = pages.buffer[10:20]
    pages.close()
    view[:] = b"0123456789"
    assert bytes(view) == b"0123456789"
    assert num_mappings(pages) == 1


def test_a_size_that_cannot_be_is_refused_and_leaves_no_descriptor() -> None:
    before = num_descriptors()
    with pytest.raises(MoverError, match="memory of"):
        Pages(2**62)
    assert num_descriptors() == before


def test_pages_are_a_tensor_that_starts_on_a_page() -> None:
    pages = Pages(SIZE)
    tensor = torch.frombuffer(pages.buffer, dtype=torch.uint8)
    assert tensor.data_ptr() % mmap.PAGESIZE == 0
    tensor[SIZE - 1] = 7
    assert pages.buffer[SIZE - 1] == 7
    pages.close()
    assert tensor[SIZE - 1] == 7, "views keep the pages"
