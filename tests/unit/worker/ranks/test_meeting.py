"""How ranks find each other: who does not fit is refused with the reason, and the others are waited for."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lineclear.base.errors import ConfigError
from lineclear.config.components import LinkConfig
from lineclear.protocol.roles import Role
from lineclear.transport.endpoint import UnixEndpoint, parse_endpoint
from lineclear.transport.framing import frame
from lineclear.transport.link import connect
from lineclear.worker.desk import LifeOverError
from lineclear.worker.ranks.follower import LeaderLink
from lineclear.worker.ranks.leader import FollowerLinks
from lineclear.worker.ranks.meeting import (
    arrive_as_follower,
    arrive_as_leader,
    find_leader,
    open_store,
    receive_followers,
)
from lineclear.worker.ranks.messages import RankHello, RankRefusal, RankWelcome, decode_from_leader, encode
from lineclear.worker.seat import Seat

CONFIG = LinkConfig(heartbeat_seconds=0.05)
PATIENCE_SECONDS = 20.0


class GivenUpError(Exception):
    """What a waiting rank raises when the test is over."""


class Meeting:
    """Rank 0 in a thread, and seats for others."""

    def __init__(self, folder: Path) -> None:
        self.leader = Seat("p0", 3, Role.PREFILL, num_ranks=3, rank_endpoint=str(UnixEndpoint(str(folder / "ranks"))))
        self.stages: list[str] = []
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor()
        self._opened: list[FollowerLinks | LeaderLink] = []

    def on_waiting(self, stage: str) -> None:
        self.stages.append(stage)
        if self._is_over.is_set():
            raise GivenUpError

    def receive(self) -> "Future[FollowerLinks]":
        def receive() -> FollowerLinks:
            links, _ = receive_followers(self.leader, CONFIG, self.on_waiting)
            self._opened.append(links)
            return links

        return self._threads.submit(receive)

    def come(self, rank: int, **changes: int) -> "Future[tuple[LeaderLink, RankWelcome]]":
        seat = replace(self.leader, rank=rank, worker_id="somebody", **changes)

        def come() -> tuple[LeaderLink, RankWelcome]:
            link, welcome = find_leader(seat, CONFIG, self.on_waiting)
            self._opened.append(link)
            return link, welcome

        return self._threads.submit(come)

    def hear_of(self, stage: str) -> None:
        until(lambda: stage in self.stages)

    def connect(self) -> socket.socket:
        self.hear_of("waiting for ranks 1, 2 of 3")
        connection = connect(parse_endpoint(self.leader.rank_endpoint))
        connection.settimeout(PATIENCE_SECONDS)
        return connection

    def end(self) -> None:
        self._is_over.set()
        self._threads.shutdown()
        for link in self._opened:
            link.close()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    made = Meeting(tmp_path)
    yield made
    made.end()


def test_all_meet_and_go_on_together(meeting: Meeting) -> None:
    received = meeting.receive()
    second = meeting.come(2)
    meeting.hear_of("waiting for rank 1 of 3")
    first = meeting.come(1)
    links = received.result(PATIENCE_SECONDS)
    others = [each.result(PATIENCE_SECONDS) for each in (first, second)]
    assert [(welcome.worker_id, welcome.life) for _, welcome in others] == [("p0", 3)] * 2
    for _, welcome in others:
        open_store(welcome.store).set(f"{welcome.life}", "met")
    arrived = [threading.Thread(target=arrive_as_follower, args=(link, meeting.on_waiting)) for link, _ in others]
    for thread in arrived:
        thread.start()
    arrive_as_leader(links, meeting.on_waiting)
    for thread in arrived:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("rank", "changes", "reason"),
    [
        (1, {"num_ranks": 2}, "cp: 3 here, 2 there"),
        (3, {}, "cp_rank: got 3, allowed: below 3"),
        (2, {}, "cp_rank: 2 is there already"),
    ],
)
def test_who_does_not_fit_is_refused_and_the_others_are_waited_for(
    meeting: Meeting, rank: int, changes: dict[str, int], reason: str
) -> None:
    received = meeting.receive()
    second = meeting.come(2)
    meeting.hear_of("waiting for rank 1 of 3")
    with pytest.raises(ConfigError, match=reason):
        meeting.come(rank, **changes).result(PATIENCE_SECONDS)
    first = meeting.come(1)
    assert received.result(PATIENCE_SECONDS).count == 2
    assert first.result(PATIENCE_SECONDS)
    assert second.result(PATIENCE_SECONDS)


def test_another_version_is_refused(meeting: Meeting) -> None:
    meeting.receive()
    with meeting.connect() as connection:
        connection.sendall(frame(encode(RankHello(version=999, rank=1, num_ranks=3, worker_id="p0"))))
        answer = decode_from_leader(connection.recv(4096)[4:])
    assert isinstance(answer, RankRefusal)
    assert answer.reason.startswith("wire version:")


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n", frame(b"nonsense"), b"\xff" * 16])
def test_a_stranger_is_cut_and_the_others_are_waited_for(meeting: Meeting, data: bytes) -> None:
    received = meeting.receive()
    with meeting.connect() as stranger:
        stranger.sendall(data)
        if data:
            while stranger.recv(4096):
                pass
    others = [meeting.come(rank) for rank in (1, 2)]
    assert received.result(PATIENCE_SECONDS).count == 2
    assert all(each.result(PATIENCE_SECONDS) for each in others)


def test_a_rank_that_leaves_before_all_are_there_may_come_again(meeting: Meeting) -> None:
    received = meeting.receive()
    with meeting.connect() as connection:
        connection.sendall(frame(encode(RankHello(rank=1, num_ranks=3, worker_id="p0"))))
        meeting.hear_of("waiting for rank 2 of 3")
    others = [meeting.come(rank) for rank in (1, 2)]
    assert received.result(PATIENCE_SECONDS).count == 2
    assert all(each.result(PATIENCE_SECONDS) for each in others)


def test_a_rank_0_that_is_gone_again_ends_the_life(meeting: Meeting) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(meeting.leader.rank_endpoint.partition(":")[2])
    server.listen()
    coming = meeting.come(1)
    connection, _ = server.accept()
    connection.close()
    with pytest.raises(LifeOverError, match="rank 0 of this instance is gone"):
        coming.result(PATIENCE_SECONDS)
    server.close()
