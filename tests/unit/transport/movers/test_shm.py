"""What is true of shared memory only. Whether it holds the contract is asked in `tests/contract`."""

import msgspec
import pytest

from lineclear.transport.movers.mover import MoverError
from lineclear.transport.movers.shm import ShmMover
from lineclear.transport.movers.shm_memory import ShmDestination, decode_key


def changed(key: bytes, **changes: object) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(decode_key(key), **changes))


def test_a_descriptor_that_is_another_memory_by_now_is_refused() -> None:
    memory, other = ShmMover().open_memory(4096), ShmMover().open_memory(4096)
    with pytest.raises(MoverError, match="another memory by now"):
        ShmDestination(changed(memory.key, fd=decode_key(other.key).fd))
    memory.close()
    other.close()


def test_a_key_with_another_size_is_refused() -> None:
    memory = ShmMover().open_memory(4096)
    with pytest.raises(MoverError, match="has not the 8192 bytes"):
        ShmDestination(changed(memory.key, num_bytes=8192))
    memory.close()


def test_a_process_that_does_not_hold_its_memory_is_not_admitted() -> None:
    memory = ShmMover().open_memory(4096)
    with pytest.raises(MoverError, match="is not the writer that it is said to be"):
        memory.admit(changed(memory.key, name="somebody else's"))
    memory.close()


def test_a_writer_on_another_host_is_not_admitted() -> None:
    memory = ShmMover().open_memory(4096)
    life = msgspec.structs.replace(decode_key(memory.key).life, boot_id="another")
    with pytest.raises(MoverError, match="of another host or container"):
        memory.admit(changed(memory.key, life=life))
    memory.close()
