"""How the ranks of an instance find each other: rank 0 listens, the others come and say who they are.

    RankHello of each ──▶ RankWelcome to all ──▶ communicator ──▶ facts compared ──▶ loading … ──▶ ready

Whoever does not fit is refused with the reason, and rank 0 goes on waiting for one that does. While a rank loads, its
links are kept alive by `Arrival.keep_alive`; what all do together after that begins when all have arrived.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from torch.distributed import (
    FileStore,  # pyright: ignore[reportPrivateImportUsage] - documented as torch.distributed's
    Store,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)

from lineclear.base.errors import ConfigError, PeerError
from lineclear.config.components import LinkConfig
from lineclear.engine.bell import wait_readable
from lineclear.engine.passes import Passes, PassMaking
from lineclear.engine.store import KvStore
from lineclear.model.config import GlmConfig
from lineclear.model.glm import GlmModel
from lineclear.protocol.wire import WIRE_VERSION
from lineclear.transport.endpoint import TcpEndpoint, UnixEndpoint, parse_endpoint
from lineclear.transport.link import Link, Talk, connect, listen
from lineclear.transport.movers.mover import MoverError
from lineclear.worker.desk import LifeOverError
from lineclear.worker.ranks.follower import LeaderLink
from lineclear.worker.ranks.leader import FollowerLink, FollowerLinks
from lineclear.worker.ranks.messages import (
    FromFollower,
    FromLeader,
    GoOn,
    RankArrived,
    RankHello,
    RankRefusal,
    RankWelcome,
    decode_from_follower,
    decode_from_leader,
    encode,
)
from lineclear.worker.seat import Seat

HELLO_SECONDS: Final = 10.0
"""How long a connection may take to say hello."""

CONNECT_PAUSE_SECONDS: Final = 0.1
POLL_SECONDS: Final = 0.2
STORE_SECONDS: Final = 60.0

_TO_LEADER: Talk[FromLeader, FromFollower] = Talk("rank 0", encode, decode_from_leader)
_TO_FOLLOWER: Talk[FromFollower, FromLeader] = Talk("the rank", encode, decode_from_follower)

logger = logging.getLogger(__name__)

OnWaiting = Callable[[str], None]
"""Hears, now and then, what is waited for; may raise to give up."""


@dataclass(slots=True)
class _Guest:
    """A connection that has not said hello."""

    link: FollowerLink
    until: float


def receive_followers(
    seat: Seat, config: LinkConfig, on_waiting: OnWaiting, now: Callable[[], float] = time.monotonic
) -> tuple[FollowerLinks, Store]:
    """As rank 0: wait until every other rank is there, and welcome them.

    Returns: the links, and where the communicator's ranks meet, for as long as it is kept.

    Raises:
        MoverError: The endpoint cannot be bound.
    """
    try:
        server, endpoint = listen(parse_endpoint(seat.rank_endpoint))
    except OSError as error:
        raise MoverError(f"cannot listen for other ranks on {seat.rank_endpoint}: {error}") from error
    logger.info("waiting for ranks on %s", endpoint)
    with server:
        followers = FollowerLinks(_Reception(server, seat, config, now).wait(on_waiting))
    if isinstance(endpoint, UnixEndpoint):
        place = UnixEndpoint(f"{endpoint.path}.store")
        store = open_store(str(place))
    else:
        store = TCPStore(endpoint.host, 0, is_master=True, wait_for_workers=False)
        place = TcpEndpoint(endpoint.host, store.port)
    followers.tell(RankWelcome(worker_id=seat.worker_id, life=seat.life, store=str(place)))
    return followers, store


def find_leader(
    seat: Seat, config: LinkConfig, on_waiting: OnWaiting, now: Callable[[], float] = time.monotonic
) -> tuple[LeaderLink, RankWelcome]:
    """As another rank: come to rank 0, for as long as it takes.

    Raises:
        ConfigError: Rank 0 refuses this one.
        LifeOverError: Rank 0 is gone again.
    """
    endpoint = parse_endpoint(seat.rank_endpoint)
    while True:
        try:
            link: LeaderLink = Link(connect(endpoint), _TO_LEADER, config, now)
            break
        except OSError:
            on_waiting(f"waiting for rank 0 at {endpoint}")
            time.sleep(CONNECT_PAUSE_SECONDS)
    try:
        return link, _introduce(link, seat, on_waiting)
    except BaseException:
        link.close()
        raise


def _introduce(link: LeaderLink, seat: Seat, on_waiting: OnWaiting) -> RankWelcome:
    try:
        link.send(RankHello(rank=seat.rank, num_ranks=seat.num_ranks, worker_id=seat.worker_id))
        while not (messages := link.poll(POLL_SECONDS)):
            on_waiting("waiting for the other ranks")
    except ConnectionError as error:
        raise LifeOverError(f"rank 0 of this instance is gone: {error}") from error
    match messages:
        case [RankWelcome() as welcome]:
            return welcome
        case [RankRefusal(reason)]:
            raise ConfigError("cp_rank", seat.rank, f"what rank 0 takes: {reason}")
        case _:
            raise PeerError(f"rank 0 answers a hello with {[type(each).__name__ for each in messages]}")


def open_store(place: str) -> Store:
    """Where the communicator's ranks meet, as rank 0 says in its welcome."""
    endpoint = parse_endpoint(place)
    if isinstance(endpoint, UnixEndpoint):
        return FileStore(endpoint.path, -1)
    return TCPStore(endpoint.host, endpoint.port, timeout=timedelta(seconds=STORE_SECONDS))


class PatientMaking:
    """A `PassMaking` that lets all ranks arrive before they do anything together that has a deadline.

    Args:
        making: the ranks'.
        arrive: returns when all have arrived.
    """

    def __init__(self, making: PassMaking, arrive: Callable[[], None]) -> None:
        self._making = making
        self._arrive = arrive

    @property
    def reserved_bytes(self) -> int:
        """As the ranks'."""
        return self._making.reserved_bytes

    def stored_layers(self, config: GlmConfig) -> Collection[int] | None:
        """As the ranks'."""
        return self._making.stored_layers(config)

    def agree(self, number: int) -> int:
        """As the ranks', when all have come to this."""
        self._arrive()
        return self._making.agree(number)

    def max_step_blocks(self, config: GlmConfig) -> int | None:
        """As the ranks'."""
        return self._making.max_step_blocks(config)

    def make(self, model: GlmModel, store: KvStore, max_model_len: int) -> Passes:
        """As the ranks'."""
        return self._making.make(model, store, max_model_len)


def arrive_as_leader(links: FollowerLinks, on_waiting: OnWaiting) -> None:
    """Wait until all ranks have arrived, and let them go on."""
    while links.num_arrived < links.count:
        links.poll(POLL_SECONDS)
        on_waiting("waiting for the other ranks")
    links.num_arrived = 0
    links.tell(GoOn())


def arrive_as_follower(link: LeaderLink, on_waiting: OnWaiting) -> None:
    """Tell rank 0, and wait until all have."""
    try:
        link.send(RankArrived())
        while not (messages := link.poll(POLL_SECONDS)):
            on_waiting("waiting for the other ranks")
    except ConnectionError as error:
        raise LifeOverError(f"rank 0 of this instance is gone: {error}") from error
    if messages != [GoOn()]:
        raise PeerError(f"rank 0 answers an arrival with {[type(each).__name__ for each in messages]}")


class _Reception:
    """Takes connections until every rank is there."""

    def __init__(self, server: socket.socket, seat: Seat, config: LinkConfig, now: Callable[[], float]) -> None:
        self._server = server
        self._seat = seat
        self._config = config
        self._now = now
        self._guests: list[_Guest] = []
        self._links: dict[int, FollowerLink] = {}

    def wait(self, on_waiting: OnWaiting) -> dict[int, FollowerLink]:
        """The links of all ranks; those that are no rank's are closed, whatever happens."""
        try:
            self._receive_all(on_waiting)
        except BaseException:
            for link in self._links.values():
                link.close()
            raise
        finally:
            for guest in self._guests:
                guest.link.close()
        return self._links

    def _receive_all(self, on_waiting: OnWaiting) -> None:
        while len(self._links) < self._seat.num_ranks - 1:
            missing = sorted(set(range(1, self._seat.num_ranks)) - set(self._links))
            on_waiting(f"waiting for {_named(missing)} of {self._seat.num_ranks}")
            links = [*(guest.link for guest in self._guests), *self._links.values()]
            wait_readable([each.fileno() for each in (self._server, *links)], POLL_SECONDS)
            for rank, link in list(self._links.items()):
                self._keep(rank, link)  # first: one that is gone may be among those that come
            self._accept()
            for guest in list(self._guests):
                self._hear(guest)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except BlockingIOError:
                return
            self._guests.append(
                _Guest(Link(connection, _TO_FOLLOWER, self._config, self._now), self._now() + HELLO_SECONDS)
            )

    def _hear(self, guest: _Guest) -> None:
        try:
            messages = guest.link.poll(0)
        except (ConnectionError, PeerError) as error:
            logger.warning("somebody came who is no rank: %s", error)
            self._guests.remove(guest)
            guest.link.close()
            return
        if not messages and self._now() < guest.until:
            return
        self._guests.remove(guest)
        if len(messages) == 1 and isinstance(messages[0], RankHello):
            self._take_or_refuse(guest.link, messages[0])
        else:
            guest.link.close()

    def _take_or_refuse(self, link: FollowerLink, hello: RankHello) -> None:
        refusal = self._what_is_wrong(hello)
        if refusal is None:
            self._links[hello.rank] = link
            return
        logger.error("rank %d of %s is refused: %s", hello.rank, hello.worker_id, refusal)
        with contextlib.suppress(ConnectionError):
            link.send(RankRefusal(refusal))
        link.close()

    def _what_is_wrong(self, hello: RankHello) -> str | None:
        if hello.version != WIRE_VERSION:
            return f"wire version: {WIRE_VERSION} here, {hello.version} there"
        if hello.num_ranks != self._seat.num_ranks:
            return f"cp: {self._seat.num_ranks} here, {hello.num_ranks} there"
        if hello.rank >= self._seat.num_ranks:
            return f"cp_rank: got {hello.rank}, allowed: below {self._seat.num_ranks}"
        if hello.rank in self._links:
            return f"cp_rank: {hello.rank} is there already"
        return None

    def _keep(self, rank: int, link: FollowerLink) -> None:
        """One that ends before all are there may come again."""
        try:
            link.poll(0)
        except (ConnectionError, PeerError) as error:
            logger.warning("rank %d is gone again: %s", rank, error)
            link.close()
            del self._links[rank]


def _named(ranks: Collection[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
