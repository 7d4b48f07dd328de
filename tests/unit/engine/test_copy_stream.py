"""One contract for all streams: the CPU's thread, and CUDA's where there is a device."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from lineclear.engine.bell import wait_readable
from lineclear.engine.copy_stream import CopyStream, CudaStream, ThreadStream, Transfer
from lineclear.kv.copies import CopyId

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(
    params=[
        pytest.param("cpu", id="thread"),
        pytest.param("cuda", id="cuda", marks=[needs_cuda, pytest.mark.cuda]),
    ]
)
def stream(request: pytest.FixtureRequest) -> Iterator[CopyStream]:
    stream = ThreadStream("test") if request.param == "cpu" else CudaStream("test", torch.device("cuda"))
    yield stream
    stream.close()


def end_of(stream: CopyStream) -> Transfer:
    while True:
        wait_readable([stream.fileno()])
        ended = stream.poll()
        if ended:
            assert len(ended) == 1
            return ended[0]


def test_steps_run_in_order_and_the_end_is_told_once(stream: CopyStream) -> None:
    done: list[int] = []
    transfer = stream.start(CopyId(7), [lambda: done.append(0), lambda: done.append(1)])
    assert end_of(stream) is transfer
    assert (transfer.copy_id, transfer.has_failed, done) == (CopyId(7), False, [0, 1])
    assert transfer.seconds >= 0
    assert stream.poll() == []


def test_every_step_can_be_waited_for_also_afterwards(stream: CopyStream) -> None:
    transfer = stream.start(CopyId(0), [lambda: None] * 3)
    for step in range(3):
        transfer.wait(step)
    transfer.wait_all()
    assert transfer.wait(0) == 0.0


def test_a_thread_s_step_is_waited_for_and_no_later_one() -> None:
    stream = ThreadStream("test")
    gates = [threading.Event(), threading.Event()]
    seen: list[int] = []
    transfer = stream.start(CopyId(0), [_step(gate, seen, number) for number, gate in enumerate(gates)])
    gates[0].set()
    transfer.wait(0)
    assert seen == [0]
    threading.Timer(0.01, gates[1].set).start()
    assert transfer.wait(1) > 0
    assert seen == [0, 1]
    stream.close()


def _step(gate: threading.Event, seen: list[int], number: int) -> Callable[[], None]:
    def step() -> None:
        gate.wait()
        seen.append(number)

    return step


def test_a_step_that_fails_ends_the_transfer_and_nobody_hangs() -> None:
    stream = ThreadStream("test")
    done: list[int] = []

    def fail() -> None:
        raise OSError("no")

    transfer = stream.start(CopyId(0), [fail, lambda: done.append(1)])
    transfer.wait(1)
    transfer.wait_all()
    assert transfer.has_failed
    assert done == []
    following = stream.start(CopyId(1), [lambda: done.append(2)])
    following.wait_all()
    assert (following.has_failed, done) == (False, [2])
    stream.close()


@needs_cuda
@pytest.mark.cuda
def test_a_pass_on_the_device_sees_what_a_side_stream_has_copied() -> None:
    """Pinned host memory to the device behind a long wait: only an event makes the reader right."""
    device = torch.device("cuda")
    stream = CudaStream("test", device)
    source = torch.arange(1 << 20, dtype=torch.int32).pin_memory()
    destination = torch.zeros(1 << 20, dtype=torch.int32, device=device)

    def step() -> None:
        torch.cuda._sleep(200_000_000)
        destination.copy_(source, non_blocking=True)

    transfer = stream.start(CopyId(0), [step])
    transfer.wait(0)
    total = destination.sum(dtype=torch.int64)
    assert int(total) == int(source.sum(dtype=torch.int64))
    stream.close()
