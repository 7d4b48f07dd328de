import ctypes
import mmap
import os

import numpy as np
import pytest
import torch

from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.pages import Alias, Pages


def test_pages_are_zero_start_on_a_page_and_are_a_tensor() -> None:
    pages = Pages(10_001)
    assert bytes(pages.buffer) == bytes(10_001)
    tensor = torch.frombuffer(pages.buffer, dtype=torch.uint8)
    assert tensor.data_ptr() % mmap.PAGESIZE == 0
    tensor[10_000] = 7
    assert pages.buffer[10_000] == 7
    pages.close()
    assert tensor[10_000] == 7, "views keep the pages"


def test_the_size_is_sealed() -> None:
    pages = Pages(4096)
    with pytest.raises(PermissionError):
        os.ftruncate(pages.fd, 0)
    pages.close()


def test_closing_closes_the_descriptor_once() -> None:
    pages = Pages(4096)
    descriptor = pages.fd
    pages.close()
    pages.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_what_the_system_refuses_is_a_mover_error() -> None:
    with pytest.raises(MoverError, match=f"memory of {2**62} bytes"):
        Pages(2**62)


def test_an_alias_is_the_same_pages_until_it_is_detached() -> None:
    pages = Pages(8192)
    alias = Alias(pages)
    assert alias.address != np.frombuffer(pages.buffer, dtype=np.uint8).ctypes.data
    ctypes.memset(alias.address, 1, 8192)
    assert bytes(pages.buffer) == b"\1" * 8192
    alias.detach()
    ctypes.memset(alias.address, 2, 8192)
    assert bytes(pages.buffer) == b"\1" * 8192
    pages.close()
