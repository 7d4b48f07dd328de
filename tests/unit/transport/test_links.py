"""Both ends of a control link over real sockets: the asyncio end in a loop, the synchronous end in a thread."""

import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path

import pytest

from lineclear.base.errors import PeerError
from lineclear.config.components import LinkConfig
from lineclear.protocol import wire
from lineclear.protocol.sampling import SamplingParams
from lineclear.transport.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from lineclear.transport.framing import FrameDecoder, frame
from lineclear.transport.gateway_link import GatewayLink
from lineclear.transport.worker_links import LinkEvent, WorkerConnected, WorkerLinks, WorkerLost, WorkerMessage
from tests.unit.transport.model_facts import FACTS

PATIENT = LinkConfig(heartbeat_seconds=10.0, peer_timeout_seconds=100.0)
HASTY = LinkConfig(heartbeat_seconds=0.02, peer_timeout_seconds=0.2)
HELLO = wire.WorkerHello(version=wire.WIRE_VERSION, worker_id="w", life=1, pid=1, model=FACTS)


def in_loop(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


@pytest.fixture(params=["unix", "tcp"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    if request.param == "tcp":
        yield TcpEndpoint("127.0.0.1", 0)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield UnixEndpoint(str(Path(folder) / "control"))


class Gateway:
    """A gateway's end whose events wait in a queue."""

    def __init__(self, config: LinkConfig) -> None:
        self.events: asyncio.Queue[LinkEvent] = asyncio.Queue()
        self.links = WorkerLinks(config, self.events.put_nowait)
        self.config = config

    async def connect(self) -> GatewayLink:
        return await asyncio.to_thread(GatewayLink.connect, self.bound, HELLO, self.config)

    async def connected(self) -> tuple[GatewayLink, WorkerConnected]:
        link = await self.connect()
        event = await self.events.get()
        assert isinstance(event, WorkerConnected)
        return link, event


@contextlib.asynccontextmanager
async def listening(endpoint: Endpoint, config: LinkConfig = PATIENT) -> AsyncIterator[Gateway]:
    gateway = Gateway(config)
    gateway.bound = await gateway.links.listen(endpoint)
    try:
        yield gateway
    finally:
        await gateway.links.close()


def submission(num_tokens: int) -> wire.SubmitSequence:
    return wire.SubmitSequence(
        sequence_id=1,
        request_id="r",
        prompt_token_ids=[70_000] * num_tokens,
        sampling=SamplingParams(max_tokens=1),
    )


async def poll_until_message(link: GatewayLink) -> list[wire.ToWorker]:
    while True:
        if messages := await asyncio.to_thread(link.poll, 5.0):
            return messages


@in_loop
async def test_messages_pass_both_ways_in_order(endpoint: Endpoint) -> None:
    async with listening(endpoint) as gateway:
        link, event = await gateway.connected()
        assert event.hello == HELLO
        for number in range(3):
            assert gateway.links.send(event.link_id, wire.CancelSequence(sequence_id=number))
        received = []
        while len(received) < 3:
            received += await poll_until_message(link)
        assert received == [wire.CancelSequence(sequence_id=number) for number in range(3)]
        for detail in "ab":
            link.send(wire.InvariantsChecked(ok=True, detail=detail))
        for detail in "ab":
            assert await gateway.events.get() == WorkerMessage(
                event.link_id, wire.InvariantsChecked(ok=True, detail=detail)
            )
        link.close()


@in_loop
async def test_messages_larger_than_the_sockets_buffers_pass(endpoint: Endpoint) -> None:
    async with listening(endpoint) as gateway:
        link, event = await gateway.connected()
        prompt = submission(2_000_000)
        gateway.links.send(event.link_id, prompt)
        assert await poll_until_message(link) == [prompt]
        answer = wire.InvariantsChecked(ok=False, detail="x" * 8_000_000)
        link.send(answer)
        draining = asyncio.create_task(asyncio.to_thread(link.close))
        assert await gateway.events.get() == WorkerMessage(event.link_id, answer)
        await draining


@in_loop
async def test_polling_without_messages_does_not_wait(endpoint: Endpoint) -> None:
    async with listening(endpoint) as gateway:
        link, _ = await gateway.connected()
        assert link.poll(0) == []
        link.close()


@in_loop
async def test_a_worker_that_ends_is_lost_at_once(endpoint: Endpoint) -> None:
    async with listening(endpoint) as gateway:
        link, event = await gateway.connected()
        link.close()
        assert await gateway.events.get() == WorkerLost(event.link_id, "the worker closed the link")
        assert not gateway.links.send(event.link_id, wire.Drain())
        assert gateway.links.statistics().num_open == 0
        assert gateway.links.statistics().num_lost == 1


@in_loop
async def test_a_gateway_that_ends_is_noticed_after_its_last_messages(endpoint: Endpoint) -> None:
    async with listening(endpoint) as gateway:
        link, event = await gateway.connected()
        gateway.links.send(event.link_id, wire.Drain())
    assert link.poll(5.0) == [wire.Drain()]
    with pytest.raises(ConnectionError):
        link.poll(5.0)
    link.close()


@in_loop
async def test_every_link_is_reported_lost_once_when_the_gateway_closes(endpoint: Endpoint) -> None:
    async with listening(endpoint) as gateway:
        link, event = await gateway.connected()
    assert await gateway.events.get() == WorkerLost(event.link_id, "the gateway closed the link")
    assert gateway.events.empty()
    link.close()


@in_loop
async def test_closing_does_not_wait_for_a_worker_that_never_reads(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lineclear.transport.worker_links.CLOSE_SECONDS", 0.01)
    async with listening(endpoint) as gateway:
        link, event = await gateway.connected()
        gateway.links.send(event.link_id, submission(2_000_000))
    assert isinstance(await gateway.events.get(), WorkerLost)
    link.close()


@in_loop
async def test_a_heartbeat_may_fall_between_accepting_a_worker_and_having_its_connection() -> None:
    async with listening(TcpEndpoint("127.0.0.1", 0)) as gateway:
        gateway.links._new_link()  # as an event loop does before it calls connection_made
        gateway.links._on_tick()
        assert gateway.links.statistics().num_open == 0


@in_loop
async def test_a_silent_worker_is_lost(endpoint: Endpoint) -> None:
    async with listening(endpoint, HASTY) as gateway:
        link, event = await gateway.connected()
        assert await gateway.events.get() == WorkerLost(event.link_id, "silent for 0.2 s")
        link.close()


@in_loop
async def test_heartbeats_keep_both_ends_together(endpoint: Endpoint) -> None:
    async with listening(endpoint, HASTY) as gateway:
        link, event = await gateway.connected()
        end = asyncio.get_running_loop().time() + 3 * HASTY.peer_timeout_seconds
        while asyncio.get_running_loop().time() < end:
            assert await asyncio.to_thread(link.poll, 1.0) == []
        assert gateway.events.empty()
        assert gateway.links.send(event.link_id, wire.Drain())
        link.close()


def test_a_silent_gateway_is_lost() -> None:
    now = 0.0
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = GatewayLink(ours, PATIENT, lambda: now)
    now = 100.0
    assert link.poll(0) == []
    now = 100.1
    with pytest.raises(ConnectionError, match="silent for 100"):
        link.poll(0)
    theirs.close()
    link.close()


def test_what_arrived_while_the_worker_was_busy_counts_as_heard() -> None:
    now = 0.0
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = GatewayLink(ours, PATIENT, lambda: now)
    theirs.send(frame(wire.encode(wire.Drain())))
    now = 1000.0
    assert link.poll(0) == [wire.Drain()]
    theirs.close()
    link.close()


def test_a_worker_sends_a_heartbeat_when_it_had_nothing_to_say() -> None:
    now = 0.0
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    link = GatewayLink(ours, PATIENT, lambda: now)
    now = 9.9
    link.poll(0)
    with pytest.raises(BlockingIOError):
        theirs.recv(10)
    now = 10.0
    link.poll(0)
    assert theirs.recv(10) == bytes(4)
    link.close()
    theirs.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        frame(b"\xc1"),
        frame(wire.encode(wire.Drain())),
        frame(wire.encode(wire.Drained())),
        (2**31).to_bytes(4, "big"),
        frame(wire.encode(wire.WorkerHello(version=wire.WIRE_VERSION + 1, worker_id="w", life=1, pid=1, model=FACTS))),
    ],
    ids=["no message", "a gateway's message", "no hello first", "too long", "other version"],
)
@in_loop
async def test_nonsense_instead_of_a_hello_closes_the_link_and_is_counted(nonsense: bytes) -> None:
    async with listening(TcpEndpoint("127.0.0.1", 0)) as gateway:
        reader, writer = await asyncio.open_connection(gateway.bound.host, gateway.bound.port)
        writer.write(nonsense)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert gateway.links.statistics().num_malformed == 1
        assert gateway.events.empty()
        writer.close()


@in_loop
async def test_nonsense_after_a_hello_loses_the_worker_and_nobody_else() -> None:
    async with listening(TcpEndpoint("127.0.0.1", 0)) as gateway:
        good, good_event = await gateway.connected()
        reader, writer = await asyncio.open_connection(gateway.bound.host, gateway.bound.port)
        writer.write(frame(wire.encode(HELLO)) + frame(b"\xc1") + frame(wire.encode(wire.Drained())))
        bad_event = await gateway.events.get()
        assert isinstance(bad_event, WorkerConnected)
        lost = await gateway.events.get()
        assert isinstance(lost, WorkerLost)
        assert lost.link_id == bad_event.link_id
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        assert gateway.events.empty()
        assert gateway.links.send(good_event.link_id, wire.Drain())
        assert await poll_until_message(good) == [wire.Drain()]
        good.close()


def test_nonsense_from_the_gateway_is_a_peer_error() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = GatewayLink(ours, PATIENT, lambda: 0.0)
    theirs.send(frame(wire.encode(wire.Drained())))
    with pytest.raises(PeerError):
        link.poll(0)
    theirs.close()
    link.close()


@in_loop
async def test_a_worker_that_leaves_everything_unread_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lineclear.transport.worker_links.MAX_UNSENT_BYTES", 1_000_000)
    async with listening(TcpEndpoint("127.0.0.1", 0)) as gateway:
        link, event = await gateway.connected()
        prompt = submission(2_000_000)
        assert gateway.links.send(event.link_id, prompt)
        gateway.links.send(event.link_id, prompt)
        assert await gateway.events.get() == WorkerLost(event.link_id, "the worker does not read")
        link.close()


def test_a_gateway_that_leaves_everything_unread_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lineclear.transport.link.MAX_UNSENT_BYTES", 1_000_000)
    monkeypatch.setattr("lineclear.transport.link.MAX_DRAIN_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = GatewayLink(ours, PATIENT, time.monotonic)
    with pytest.raises(ConnectionError, match="does not read"):
        link.send(wire.InvariantsChecked(ok=True, detail="x" * 8_000_000))
    theirs.close()
    link.close()


def test_connecting_to_nobody_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        GatewayLink.connect(UnixEndpoint(str(tmp_path / "none")), HELLO, PATIENT)


@in_loop
async def test_a_new_gateway_takes_over_the_socket_of_a_killed_one(tmp_path: Path) -> None:
    endpoint = UnixEndpoint(str(tmp_path / "control"))
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(endpoint.path)
    stale.close()
    async with listening(endpoint) as gateway:
        link, _ = await gateway.connected()
        link.close()


@in_loop
async def test_nothing_sent_on_one_link_is_delivered_on_the_next(endpoint: Endpoint) -> None:
    async with listening(endpoint) as gateway:
        first, event = await gateway.connected()
        gateway.links.send(event.link_id, wire.Drain())
        first.close()
        second = await gateway.connect()
        later = await gateway.events.get()
        while not isinstance(later, WorkerConnected):
            later = await gateway.events.get()
        assert later.link_id != event.link_id
        gateway.links.send(later.link_id, wire.CheckInvariants())
        assert await poll_until_message(second) == [wire.CheckInvariants()]
        second.close()


def test_messages_are_decoded_from_pieces() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = GatewayLink(ours, PATIENT, lambda: 0.0)
    data = frame(wire.encode(wire.Drain()))
    theirs.send(data[:5])
    assert link.poll(0) == []
    theirs.send(data[5:])
    assert link.poll(0) == [wire.Drain()]
    link.send(wire.Drained())
    assert FrameDecoder().feed(theirs.recv(1000)) == [wire.encode(wire.Drained())]
    theirs.close()
    link.close()
