"""Links between workers: a decode worker connects to prefill instances, which listen.

Life of a link::

    connected / accepted ── both hellos fit ──▶ PeerConnected ── PeerSaid* ── end, silence, nonsense ──▶ PeerLost
             └── they do not fit: refusal, closed ── end before a hello ──▶ closed, no event

For a synchronous loop: `poll` never waits, and `fileno` is readable while it has something to do, so that the loop can
sleep on it together with everything else. Endpoints that are wanted are connected again and again, with a pause.

The invariants of the package hold: a link is one connection, nothing sent on it arrives on a later one; messages arrive
in the order in which they were sent (R4 needs that of orders).
"""

import logging
import select
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NewType, TypeAlias

from lineclear.base.errors import PeerError
from lineclear.config.components import LinkConfig
from lineclear.protocol.handoff.codec import PeerMessage, decode_from_peer, encode
from lineclear.protocol.handoff.hello import PeerHello, PeerRefusal, differences
from lineclear.protocol.handoff.messages import ForgetPrompt, HandoffMessage
from lineclear.transport.endpoint import Endpoint, UnixEndpoint
from lineclear.transport.framing import HEARTBEAT, MAX_UNSENT_BYTES, FrameDecoder, frame
from lineclear.transport.link import listen

RECEIVE_BYTES = 256 * 1024
RECONNECT_SECONDS = 0.25
"""Pause between two attempts to reach an endpoint."""

REFUSED_SECONDS = 10.0
"""The same after one of the two has refused the other."""

HELLO_SECONDS = 10.0
"""How long a connection may take to say hello."""

MAX_TOLD = 1024
"""Refusals that are logged once; beyond, each time."""

PeerLinkId = NewType("PeerLinkId", int)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeerConnected:
    """A worker that fits said hello."""

    link_id: PeerLinkId
    hello: PeerHello
    endpoint: Endpoint | None
    """Where it was reached; None for one that came by itself."""


@dataclass(frozen=True)
class PeerSaid:
    """A worker sent a message."""

    link_id: PeerLinkId
    message: HandoffMessage | ForgetPrompt


@dataclass(frozen=True)
class PeerLost:
    """The link to a worker ended."""

    link_id: PeerLinkId
    reason: str
    was_silent: bool = False
    """Whether it ended because nothing came on it for too long."""


@dataclass(frozen=True)
class LifeRefused:
    """A worker takes nothing of this life any more, only of a new one."""

    reason: str


PeerEvent: TypeAlias = PeerConnected | PeerSaid | PeerLost | LifeRefused


@dataclass(frozen=True)
class PeerLinkStatistics:
    """Totals since start, apart from `num_open`."""

    num_open: int
    num_lost: int
    num_malformed: int
    num_refused: int

    def by_ending(self) -> dict[Literal["lost", "malformed", "refused"], int]:
        """The totals by their names."""
        return {"lost": self.num_lost, "malformed": self.num_malformed, "refused": self.num_refused}


class PeerLinks:
    """All links of one worker to other workers.

    Args:
        hello: says what this worker is, anew for every connection.
        config: heartbeats and the silence after which a peer is lost.
    """

    def __init__(
        self, hello: Callable[[], PeerHello], config: LinkConfig, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._hello = hello
        self._config = config
        self._now = now
        self._epoll = select.epoll()
        self._server: socket.socket | None = None
        self._links: dict[int, _Link] = {}
        self._wanted: dict[Endpoint, float] = {}
        """Endpoints to be connected to, and when to try next."""
        self._told: set[str] = set()
        """Refusals that the log has."""
        self._num_links = 0
        self._num_lost = 0
        self._num_malformed = 0
        self._num_refused = 0

    def fileno(self) -> int:
        """A descriptor that is readable while `poll` has something to receive."""
        return self._epoll.fileno()

    def listen(self, endpoint: Endpoint) -> Endpoint:
        """Accept workers; returns the endpoint that they can reach.

        Raises:
            OSError: The endpoint cannot be bound.
        """
        self._server, bound = listen(endpoint)
        self._epoll.register(self._server, select.EPOLLIN)
        return bound

    def want(self, endpoints: Iterable[Endpoint]) -> None:
        """Stay connected to exactly these; links to others stay until they end by themselves."""
        self._wanted = {endpoint: self._wanted.get(endpoint, 0.0) for endpoint in endpoints}

    def poll(self) -> list[PeerEvent]:
        """Connect, receive, send what is unsent, keep alive; never waits."""
        events: list[PeerEvent] = []
        self._connect_wanted()
        for descriptor, mask in self._epoll.poll(0):
            if self._server is not None and descriptor == self._server.fileno():
                self._accept()
            elif (link := self._links.get(descriptor)) is not None:
                self._serve(link, mask, events)
        self._keep_alive(events)
        return events

    def send(self, link_id: PeerLinkId, message: HandoffMessage | ForgetPrompt) -> bool:
        """Send a message, unless the link has ended; whether it has not. `True` is no promise that it arrives."""
        link = next((link for link in self._links.values() if link.link_id == link_id), None)
        if link is None:
            return False
        self._send(link, message)
        return True

    def seconds_silent(self, link_id: PeerLinkId) -> float:
        """How long nothing has come on a link, heartbeats included; infinite if it has ended."""
        times = [link.last_heard for link in self._links.values() if link.link_id == link_id]
        return self._now() - times[0] if times else float("inf")

    def is_greeting(self, endpoint: Endpoint) -> bool:
        """Whether a connection to a wanted endpoint was taken there, and no hello has come yet.

        The worker's kernel takes it, also while the worker computes.
        """
        links = [link for link in self._links.values() if link.endpoint == endpoint and link.peer is None]
        return any(link.is_connected() for link in links)

    def refuse(self, link_id: PeerLinkId, reason: str, *, ends_life: bool) -> None:
        """End a link, without an event. With `ends_life` the other end gets `LifeRefused`."""
        for link in [each for each in self._links.values() if each.link_id == link_id]:
            self._num_refused += 1
            self._send(link, PeerRefusal(reason=reason, ends_life=ends_life))
            self._try_later(link)
            self._end(link, reason, [])

    def statistics(self) -> PeerLinkStatistics:
        """Counts of links and of what went wrong on them."""
        num_open = sum(link.peer is not None for link in self._links.values())
        return PeerLinkStatistics(num_open, self._num_lost, self._num_malformed, self._num_refused)

    def close(self) -> None:
        """End every link, without events."""
        for link in self._links.values():
            link.connection.close()
        self._links.clear()
        if self._server is not None:
            self._server.close()
        self._epoll.close()

    def _connect_wanted(self) -> None:
        connected = {link.endpoint for link in self._links.values()}
        for endpoint, due in self._wanted.items():
            if endpoint in connected or self._now() < due:
                continue
            self._wanted[endpoint] = self._now() + RECONNECT_SECONDS
            try:
                connection = _connect(endpoint)
            except OSError as error:
                logger.debug("no worker at %s: %s", endpoint, error)
                continue
            self._add(connection, endpoint)

    def _accept(self) -> None:
        assert self._server is not None
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._add(connection, None)

    def _add(self, connection: socket.socket, endpoint: Endpoint | None) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._num_links += 1
        link = _Link(PeerLinkId(self._num_links), connection, endpoint, self._now())
        self._links[connection.fileno()] = link
        # A connection that is still being made becomes writable, or ends.
        self._epoll.register(connection, select.EPOLLIN | select.EPOLLOUT)
        self._send(link, self._hello())

    def _serve(self, link: "_Link", mask: int, events: list[PeerEvent]) -> None:
        try:
            if mask & select.EPOLLOUT:
                self._flush(link)
            if mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._receive(link, events)
        except OSError as error:
            self._end(link, str(error), events)
        except PeerError as error:
            self._num_malformed += 1
            self._end(link, str(error), events)

    def _receive(self, link: "_Link", events: list[PeerEvent]) -> None:
        while True:
            try:
                data = link.connection.recv(RECEIVE_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._end(link, "the worker closed the link", events)
                return
            link.last_heard = self._now()
            for payload in link.decoder.feed(data):
                self._take(link, decode_from_peer(payload), events)
                if link.has_ended:
                    return

    def _take(self, link: "_Link", message: PeerMessage, events: list[PeerEvent]) -> None:
        match message:
            case PeerHello() if link.peer is None:
                self._greet(link, message, events)
            case PeerRefusal(reason=reason):
                self._num_refused += 1
                if message.ends_life:
                    events.append(LifeRefused(reason))
                where = "that came by itself" if link.endpoint is None else f"at {link.endpoint}"
                self._tell(f"a worker {where} refuses this one: {reason}")
                self._try_later(link)
                self._end(link, f"it refuses this worker: {reason}", events)
            case PeerHello():
                raise PeerError("a worker said hello twice")
            case _ if link.peer is None:
                raise PeerError(f"{type(message).__name__} came before a hello")
            case _:
                events.append(PeerSaid(link.link_id, message))

    def _greet(self, link: "_Link", hello: PeerHello, events: list[PeerEvent]) -> None:
        ours = self._hello()
        difference = differences(ours.facts, hello.facts)
        if hello.role == ours.role:
            difference = f"role: both are {ours.role}"
        if difference:
            self._num_refused += 1
            self._tell(f"worker {hello.worker_id} does not fit and is refused: {difference}")
            self._try_later(link)
            self._send(link, PeerRefusal(reason=difference))
            self._end(link, f"it does not fit: {difference}", events)
            return
        link.peer = hello
        events.append(PeerConnected(link.link_id, hello, link.endpoint))

    def _tell(self, refusal: str) -> None:
        """Log a refusal; once, since whoever is refused comes again."""
        logger.log(logging.DEBUG if refusal in self._told else logging.ERROR, "%s", refusal)
        if len(self._told) < MAX_TOLD:
            self._told.add(refusal)

    def _try_later(self, link: "_Link") -> None:
        if link.endpoint in self._wanted:
            self._wanted[link.endpoint] = self._now() + REFUSED_SECONDS

    def _send(self, link: "_Link", message: PeerMessage) -> None:
        link.unsent += frame(encode(message))
        link.last_sent = self._now()
        try:
            self._flush(link)
        except OSError as error:
            logger.debug("link %d: %s", link.link_id, error)  # `poll` finds the same and reports it

    def _flush(self, link: "_Link") -> None:
        while link.unsent:
            try:
                num_sent = link.connection.send(link.unsent)
            except BlockingIOError:
                break
            except OSError:
                if link.is_connected():
                    raise
                break  # still connecting, or failed to: receiving tells which
            del link.unsent[:num_sent]
        mask = select.EPOLLIN | (select.EPOLLOUT if link.unsent else 0)
        self._epoll.modify(link.connection, mask)
        if len(link.unsent) > MAX_UNSENT_BYTES:
            raise ConnectionAbortedError("the worker does not read")

    def _keep_alive(self, events: list[PeerEvent]) -> None:
        now = self._now()
        for link in list(self._links.values()):
            patience = self._config.peer_timeout_seconds if link.peer is not None else HELLO_SECONDS
            if now - link.last_heard > patience:
                self._end(link, f"silent for {patience} s", events, was_silent=True)
            elif now - link.last_sent >= self._config.heartbeat_seconds and not link.unsent:
                link.unsent += HEARTBEAT
                link.last_sent = now
                self._serve(link, select.EPOLLOUT, events)

    def _end(self, link: "_Link", reason: str, events: list[PeerEvent], *, was_silent: bool = False) -> None:
        if link.has_ended:
            return
        link.has_ended = True
        del self._links[link.connection.fileno()]
        self._epoll.unregister(link.connection)
        link.connection.close()
        if link.peer is not None:
            self._num_lost += 1
            events.append(PeerLost(link.link_id, reason, was_silent))


class _Link:
    """One connection."""

    def __init__(self, link_id: PeerLinkId, connection: socket.socket, endpoint: Endpoint | None, now: float) -> None:
        self.link_id = link_id
        self.connection = connection
        self.endpoint = endpoint
        """Where it leads, if this side connected."""
        self.decoder = FrameDecoder()
        self.unsent = bytearray()
        self.last_heard = self.last_sent = now
        self.peer: PeerHello | None = None
        self.has_ended = False

    def is_connected(self) -> bool:
        """Whether the connection has been made."""
        try:
            self.connection.getpeername()
        except OSError:
            return False
        return True


def _connect(endpoint: Endpoint) -> socket.socket:
    """Begin to connect, without waiting for a host far away."""
    if isinstance(endpoint, UnixEndpoint):
        connection, address = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), endpoint.path
    else:
        family, kind, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)[0]
        connection = socket.socket(family, kind)
    connection.setblocking(False)
    try:
        connection.connect(address)
    except BlockingIOError:
        pass
    except OSError:
        connection.close()
        raise
    return connection
