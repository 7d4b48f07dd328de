"""One end of a link between two processes, for a synchronous loop that must see a message between any two engine steps.

`poll(0)` costs one system call when nothing has come; with a longer wait the process sleeps until the peer speaks or a
heartbeat is due. The invariants are those of the package.
"""

import select
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from lineclear.base.errors import ConfigError
from lineclear.config.components import LinkConfig
from lineclear.transport.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from lineclear.transport.framing import HEARTBEAT, MAX_UNSENT_BYTES, FrameDecoder, frame

RECEIVE_BYTES = 256 * 1024
CONNECT_TIMEOUT_SECONDS = 5.0
LISTEN_BACKLOG = 64
MAX_DRAIN_SECONDS = 5.0
"""How long `close` waits for a peer that does not read."""


ReceivedT = TypeVar("ReceivedT")
SentT = TypeVar("SentT")


@dataclass(frozen=True, slots=True)
class Talk(Generic[ReceivedT, SentT]):
    """Who is at the other end, in words, and how messages become bytes."""

    peer: str
    encode: Callable[[SentT], bytes]
    decode: Callable[[bytes], ReceivedT]
    """Raises: PeerError for what is no message."""


class Link(Generic[ReceivedT, SentT]):
    """One connection. It does not reconnect: a new link is a new object.

    Args:
        connection: Owns: closes it.
    """

    def __init__(
        self, connection: socket.socket, talk: Talk[ReceivedT, SentT], config: LinkConfig, now: Callable[[], float]
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._talk = talk
        self._config = config
        self._now = now
        self._decoder = FrameDecoder()
        self._unsent = bytearray()
        self._last_heard = self._last_sent = now()
        self._has_ended = False

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to receive."""
        return self._connection.fileno()

    def seconds_until_due(self) -> float:
        """How long `poll` may be put off while nothing comes: there is a heartbeat to be sent then."""
        return max(0.0, self._last_sent + self._config.heartbeat_seconds - self._now())

    def poll(self, timeout_seconds: float, wake_filenos: Collection[int] = ()) -> list[ReceivedT]:
        """Return the messages that have come, waiting for the first until the timeout.

        A wait may end early with nothing: for a heartbeat, or because one of `wake_filenos` is readable.

        Raises:
            ConnectionError: The peer is lost. Messages that came before that have been returned.
            PeerError: The peer sent nonsense; the link is useless from here on.
        """
        if self._has_ended:
            raise ConnectionResetError(f"{self._talk.peer} closed the link")
        self._keep_alive()
        if timeout_seconds > 0 or self._unsent:
            until_heartbeat = self._last_sent + self._config.heartbeat_seconds - self._now()
            self._wait(min(timeout_seconds, until_heartbeat), wake_filenos)
        messages = self._receive()
        if not messages and self._has_ended:
            raise ConnectionResetError(f"{self._talk.peer} closed the link")
        return messages

    def send(self, message: SentT) -> None:
        """Send a message; what the peer does not take at once is sent by later calls.

        Raises:
            ConnectionError: The peer is lost or does not read.
        """
        self._unsent += frame(self._talk.encode(message))
        self._last_sent = self._now()
        self._flush()

    def close(self) -> None:
        """Send what is unsent, as far as the peer takes it in time, and close."""
        deadline = self._now() + MAX_DRAIN_SECONDS
        try:
            while self._unsent and self._now() < deadline:
                self._wait(deadline - self._now())
        except ConnectionError:
            pass
        self._connection.close()

    def _keep_alive(self) -> None:
        now = self._now()
        if now - self._last_sent >= self._config.heartbeat_seconds and not self._unsent:
            self._unsent += HEARTBEAT
            self._last_sent = now
            self._flush()

    def _wait(self, timeout_seconds: float, wake_filenos: Collection[int] = ()) -> None:
        """Sleep until something can be received or sent, or a descriptor is readable; sends what can be."""
        timeout_ms = 1000 * max(0.0, timeout_seconds)
        poller = select.poll()
        poller.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        for fileno in wake_filenos:
            poller.register(fileno, select.POLLIN)
        for _, events in poller.poll(timeout_ms):
            if events & select.POLLOUT:
                self._flush()

    def _receive(self) -> list[ReceivedT]:
        messages: list[ReceivedT] = []
        while not self._has_ended:
            try:
                data = self._connection.recv(RECEIVE_BYTES)
            except BlockingIOError:
                break
            self._has_ended = not data
            self._last_heard = self._now()
            messages += (self._talk.decode(payload) for payload in self._decoder.feed(data))
        if self._now() - self._last_heard > self._config.peer_timeout_seconds:
            raise ConnectionAbortedError(f"{self._talk.peer} was silent for {self._config.peer_timeout_seconds} s")
        return messages

    def _flush(self) -> None:
        while self._unsent:
            try:
                num_sent = self._connection.send(self._unsent)
            except BlockingIOError:
                break
            del self._unsent[:num_sent]
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise ConnectionAbortedError(f"{self._talk.peer} does not read")


def connect(endpoint: Endpoint) -> socket.socket:
    """Open a connection.

    Raises:
        OSError: Nobody is there.
    """
    if isinstance(endpoint, UnixEndpoint):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(endpoint.path)
        except OSError:
            connection.close()
            raise
        return connection
    connection = socket.create_connection((endpoint.host, endpoint.port), CONNECT_TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def listen(endpoint: Endpoint) -> tuple[socket.socket, Endpoint]:
    """Take connections; returns the endpoint that others can reach.

    Raises:
        OSError: The endpoint cannot be bound.
    """
    if isinstance(endpoint, UnixEndpoint):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.bind(endpoint.path)
        except OSError:
            server.close()
            raise
    else:
        server = socket.create_server((endpoint.host, endpoint.port))
    server.setblocking(False)
    server.listen(LISTEN_BACKLOG)
    return server, endpoint if isinstance(endpoint, UnixEndpoint) else TcpEndpoint(*server.getsockname()[:2])


def address_towards(endpoint: TcpEndpoint) -> str:
    """The address of this machine that packets to an endpoint would come from. Sends nothing.

    Raises:
        ConfigError: There is no way there.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(endpoint.host, endpoint.port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        allowed = f"an address that can be reached ({error})"
        raise ConfigError("endpoint", endpoint, allowed) from error
