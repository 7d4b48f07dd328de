"""A real worker process with the bundled model, served by a gateway's end that each test opens anew."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps

import msgspec
import pytest

from lineclear.bundled import checkpoint_path
from lineclear.cli.child import WorkerStart
from lineclear.config.components import EngineConfig, LinkConfig, ModelSource, ServeConfig
from lineclear.protocol import wire
from lineclear.protocol.sampling import SamplingParams
from lineclear.transport.endpoint import UnixEndpoint
from lineclear.transport.framing import frame
from lineclear.transport.worker_links import LinkEvent, LinkId, WorkerConnected, WorkerLinks, WorkerMessage
from lineclear.worker.seat import Seat
from tests.e2e.processes import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

PROMPT = list(range(10, 60))
CONFIG = ServeConfig(
    source=ModelSource(model=str(checkpoint_path())), engine=EngineConfig(max_total_tokens=4096, max_running=4)
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Worker"]:
    endpoint = UnixEndpoint(str(tmp_path_factory.mktemp("control") / "socket"))
    start = WorkerStart(CONFIG, str(endpoint), Seat("worker-7", life=3))
    command = [sys.executable, "-m", "lineclear", "worker", "--child", "worker-7"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(start) + b"\n")
        process.stdin.flush()
        yield Worker(endpoint, process)
        assert process.poll() is None, "the worker ended"
        process.terminate()


@dataclass(frozen=True)
class Worker:
    """The worker's process, and where it looks for its gateway."""

    endpoint: UnixEndpoint
    process: subprocess.Popen[bytes]

    async def first_event(self, events: asyncio.Queue[LinkEvent]) -> LinkEvent:
        """The first event of a new gateway; fails at once when there can be none."""
        while self.process.poll() is None:
            try:
                return await asyncio.wait_for(events.get(), 1.0)
            except TimeoutError:
                continue
        raise AssertionError("the worker ended")


class Gateway:
    """A gateway's end with one worker."""

    def __init__(self, links: WorkerLinks, events: asyncio.Queue[LinkEvent], connected: WorkerConnected) -> None:
        self.links = links
        self.hello = connected.hello
        self._link_id: LinkId = connected.link_id
        self._events = events

    def send(self, message: wire.ToWorker) -> None:
        assert self.links.send(self._link_id, message)

    def submit(self, sequence_id: int, prompt: list[int], max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        self.send(
            wire.SubmitSequence(
                sequence_id=sequence_id,
                request_id=str(sequence_id),
                prompt_token_ids=prompt,
                sampling=sampling,
                want_draft_counts=True,
            )
        )

    async def receive(self) -> wire.ToGateway:
        event = await self._events.get()
        assert isinstance(event, WorkerMessage), event
        return event.message

    async def receive_type(self, message_type: type[object]) -> object:
        while not isinstance(message := await self.receive(), message_type):
            assert not isinstance(message, wire.StepOutputs)
        return message

    async def outputs(self, sequence_id: int) -> list[wire.SequenceOutput]:
        """All outputs of a sequence, to its ending; those of others are passed over."""
        return (await self.outputs_of(sequence_id))[sequence_id]

    async def outputs_of(self, *sequence_ids: int) -> dict[int, list[wire.SequenceOutput]]:
        """All outputs of sequences that run side by side, to the last ending."""
        outputs: dict[int, list[wire.SequenceOutput]] = {sequence_id: [] for sequence_id in sequence_ids}
        while not all(each and each[-1].finish_reason for each in outputs.values()):
            message = await self.receive()
            if isinstance(message, wire.StepOutputs):
                for each in message.outputs:
                    if each.sequence_id in outputs:
                        outputs[each.sequence_id].append(each)
        return outputs

    async def assert_clean(self) -> None:
        self.send(wire.CheckInvariants())
        assert await self.receive_type(wire.InvariantsChecked) == wire.InvariantsChecked(ok=True, detail="")
        self.send(wire.QueryStatistics())
        statistics = await self.receive_type(wire.WorkerStatistics)
        assert isinstance(statistics, wire.WorkerStatistics)
        assert (statistics.num_running, statistics.num_waiting) == (0, 0)
        assert statistics.blocks_free + statistics.blocks_held == statistics.blocks_total == 256


@asynccontextmanager
async def gateway(worker: Worker) -> AsyncIterator[Gateway]:
    events: asyncio.Queue[LinkEvent] = asyncio.Queue()
    links = WorkerLinks(LinkConfig(), events.put_nowait)
    await links.listen(worker.endpoint)
    try:
        connected = await worker.first_event(events)
        assert isinstance(connected, WorkerConnected)
        yield Gateway(links, events, connected)
    finally:
        await links.close()


def in_loop(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE_SECONDS))

    return run


def tokens(outputs: list[wire.SequenceOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


@in_loop
async def test_the_hello_names_the_worker_and_its_model(worker: Worker) -> None:
    async with gateway(worker) as peer:
        hello = peer.hello
        assert (hello.worker_id, hello.life, hello.version) == ("worker-7", 3, wire.WIRE_VERSION)
        facts = hello.model
        assert (facts.num_blocks, facts.block_size, facts.draft_tokens, facts.max_running) == (256, 16, 3, 4)
        assert facts.max_model_len == 4096
        assert facts.eos_token_ids


@in_loop
async def test_sequences_are_answered_side_by_side(worker: Worker) -> None:
    async with gateway(worker) as peer:
        peer.submit(1, PROMPT, 24)
        alone = await peer.outputs(1)
        assert len(tokens(alone)) == 24
        assert alone[-1].finish_reason == "length"
        assert alone[-1].draft is not None
        peer.submit(2, PROMPT[1:], 24)
        peer.submit(3, PROMPT, 24)
        together = await peer.outputs_of(2, 3)
        assert tokens(together[3]) == tokens(alone)
        await peer.assert_clean()


@in_loop
async def test_a_cancel_is_answered_while_others_run(worker: Worker) -> None:
    async with gateway(worker) as peer:
        peer.submit(1, PROMPT, 4000)
        peer.submit(2, PROMPT, 4000)
        while not isinstance(await peer.receive(), wire.StepOutputs):
            pass
        peer.send(wire.CancelSequence(sequence_id=1))
        assert (await peer.outputs(1))[-1].finish_reason == "cancelled"
        peer.send(wire.CancelSequence(sequence_id=2))
        assert (await peer.outputs(2))[-1].finish_reason == "cancelled"
        await peer.assert_clean()


@in_loop
async def test_what_can_never_fit_ends_with_an_error(worker: Worker) -> None:
    async with gateway(worker) as peer:
        peer.submit(1, [5] * 4097, 1)
        (output,) = await peer.outputs(1)
        assert output.finish_reason == "error"
        assert output.error
        await peer.assert_clean()


@in_loop
async def test_a_lost_gateway_leaves_nothing_behind(worker: Worker) -> None:
    async with gateway(worker) as peer:
        peer.submit(1, PROMPT, 4000)
        peer.submit(2, PROMPT[5:], 4000)
        while not isinstance(await peer.receive(), wire.StepOutputs):
            pass
    async with gateway(worker) as peer:
        await peer.assert_clean()
        peer.submit(1, PROMPT, 3)
        assert len(tokens(await peer.outputs(1))) == 3


@in_loop
async def test_a_drain_finishes_what_runs(worker: Worker) -> None:
    async with gateway(worker) as peer:
        peer.submit(1, PROMPT, 30)
        peer.send(wire.Drain())
        peer.submit(2, PROMPT, 30)
        endings: dict[int, str] = {}
        while not isinstance(message := await peer.receive(), wire.Drained):
            if isinstance(message, wire.StepOutputs):
                endings |= {out.sequence_id: out.finish_reason for out in message.outputs if out.finish_reason}
        assert endings == {1: "length", 2: "error"}
        await peer.assert_clean()


@in_loop
async def test_nonsense_from_a_gateway_makes_the_worker_connect_anew(worker: Worker) -> None:
    connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_unix_server(lambda *streams: connections.put_nowait(streams), worker.endpoint.path)
    reader, writer = await connections.get()
    writer.write(frame(b"\xc1"))
    await reader.read()
    writer.close()
    _, writer = await connections.get()
    writer.close()
    server.close()
    async with gateway(worker) as peer:
        await peer.assert_clean()
