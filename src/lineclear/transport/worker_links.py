"""The gateway's end of the control links: accepts workers, reports what they say, and notices when they are lost.

Life of a link::

    accepted ── hello ──▶ WorkerConnected ── messages ──▶ WorkerMessage* ── end, silence, nonsense ──▶ WorkerLost
        └── end, silence, or anything but a hello ──▶ closed, no event

The invariants are those of the package.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NewType, TypeAlias, cast

from lineclear.base.errors import PeerError
from lineclear.config.components import LinkConfig
from lineclear.protocol import wire
from lineclear.transport.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from lineclear.transport.framing import HEARTBEAT, MAX_UNSENT_BYTES, FrameDecoder, frame

CLOSE_SECONDS = 5.0
"""How long `close` waits for workers that do not read."""

LinkId = NewType("LinkId", int)


@dataclass(frozen=True)
class WorkerConnected:
    """A worker said hello."""

    link_id: LinkId
    hello: wire.WorkerHello


@dataclass(frozen=True)
class WorkerMessage:
    """A worker sent a message."""

    link_id: LinkId
    message: wire.ToGateway


@dataclass(frozen=True)
class WorkerLost:
    """The link to a worker ended."""

    link_id: LinkId
    reason: str


LinkEvent: TypeAlias = WorkerConnected | WorkerMessage | WorkerLost


@dataclass(frozen=True)
class LinkStatistics:
    """Totals since start, apart from `num_open`."""

    num_open: int
    num_accepted: int
    num_lost: int
    num_malformed: int


class WorkerLinks:
    """All links of one gateway.

    `on_event` is called from the event loop, in order; it must not block, and may call `send`.
    """

    def __init__(self, config: LinkConfig, on_event: Callable[[LinkEvent], None]) -> None:
        self._config = config
        self._on_event = on_event
        self._links: dict[LinkId, _Link] = {}
        self._server: asyncio.Server | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._num_accepted = 0
        self._num_lost = 0
        self._num_malformed = 0

    async def listen(self, endpoint: Endpoint) -> Endpoint:
        """Start to accept workers and return the endpoint they can reach.

        Raises:
            OSError: The endpoint cannot be bound.
        """
        loop = asyncio.get_running_loop()
        if isinstance(endpoint, UnixEndpoint):
            self._server = await loop.create_unix_server(self._new_link, endpoint.path)
            bound: Endpoint = endpoint
        else:
            self._server = await loop.create_server(self._new_link, endpoint.host, endpoint.port)
            bound = TcpEndpoint(endpoint.host, self._server.sockets[0].getsockname()[1])
        self._schedule_tick()
        return bound

    def send(self, link_id: LinkId, message: wire.ToWorker) -> bool:
        """Send a message, unless the link has ended: returns whether it has not.

        `True` is no promise that the worker gets it; a `WorkerLost` follows if it does not.
        """
        link = self._links.get(link_id)
        if link is None or link.has_ended:
            return False
        link.send(wire.encode(message))
        return True

    def statistics(self) -> LinkStatistics:
        """Counts of links and of what went wrong on them."""
        return LinkStatistics(len(self._links), self._num_accepted, self._num_lost, self._num_malformed)

    async def close(self) -> None:
        """Stop accepting, end every link, and return when all their events have been delivered."""
        self._is_closed = True
        if self._tick is not None:
            self._tick.cancel()
        if self._server is not None:
            self._server.close()
        links = list(self._links.values())
        for link in links:
            link.close()
        if links:
            _, unclosed = await asyncio.wait([link.closed for link in links], timeout=CLOSE_SECONDS)
            if unclosed:
                await self._abort(links)

    @staticmethod
    async def _abort(links: "list[_Link]") -> None:
        for link in links:
            link.abort()
        await asyncio.wait([link.closed for link in links])

    def _new_link(self) -> "_Link":
        self._num_accepted += 1
        return _Link(LinkId(self._num_accepted), self._on_event, self._on_opened, self._on_closed)

    def _schedule_tick(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(self._config.heartbeat_seconds, self._on_tick)

    def _on_tick(self) -> None:
        silent_since = asyncio.get_running_loop().time() - self._config.peer_timeout_seconds
        for link in list(self._links.values()):
            if link.last_heard < silent_since:
                link.end(f"silent for {self._config.peer_timeout_seconds} s")
            else:
                link.keep_alive()
        self._schedule_tick()

    def _on_opened(self, link: "_Link") -> None:
        self._links[link.link_id] = link
        if self._is_closed:
            link.abort()

    def _on_closed(self, link: "_Link") -> None:
        del self._links[link.link_id]
        self._num_lost += 1
        self._num_malformed += link.is_malformed


class _Link(asyncio.Protocol):
    """One accepted connection."""

    def __init__(
        self,
        link_id: LinkId,
        on_event: Callable[[LinkEvent], None],
        on_opened: Callable[["_Link"], None],
        on_closed: Callable[["_Link"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.link_id = link_id
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.last_heard = self._loop.time()
        self.is_malformed = False
        self._on_event = on_event
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._decoder = FrameDecoder()
        self._has_hello = False
        self._has_sent = False
        self._end_reason: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can be sent or received."""
        return self._end_reason is not None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._on_opened(self)

    def data_received(self, data: bytes) -> None:
        self.last_heard = self._loop.time()
        try:
            for payload in self._decoder.feed(data):
                if self._end_reason is not None:
                    return
                self._receive(wire.decode_to_gateway(payload))
        except PeerError as error:
            self.is_malformed = True
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._end_reason or (str(exc) if exc else "the worker closed the link")
        self._on_closed(self)
        if self._has_hello:
            self._on_event(WorkerLost(self.link_id, reason))
        self.closed.set_result(None)

    def send(self, payload: bytes) -> None:
        """Queue a message; a worker that leaves too much unread is lost."""
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.end("the worker does not read")
            return
        self._transport.write(frame(payload))
        self._has_sent = True

    def keep_alive(self) -> None:
        """Send a heartbeat if nothing was sent since the last call."""
        if not self._has_sent and not self.has_ended:
            self._transport.write(HEARTBEAT)
        self._has_sent = False

    def end(self, reason: str) -> None:
        """Drop the connection and whatever is unsent."""
        if self._end_reason is None:
            self._end_reason = reason
            self._transport.abort()

    def close(self) -> None:
        """Send what is unsent, then close."""
        self._end_reason = self._end_reason or "the gateway closed the link"
        self._transport.close()

    def abort(self) -> None:
        """Close now, without sending what is unsent."""
        self._transport.abort()

    def _receive(self, message: wire.ToGateway) -> None:
        if self._has_hello:
            self._on_event(WorkerMessage(self.link_id, message))
            return
        if not isinstance(message, wire.WorkerHello):
            raise PeerError(f"the first message is {type(message).__name__}, allowed: WorkerHello")
        if message.version != wire.WIRE_VERSION:
            raise PeerError(f"the worker's wire version is {message.version}, allowed: {wire.WIRE_VERSION}")
        self._has_hello = True
        self._on_event(WorkerConnected(self.link_id, message))
