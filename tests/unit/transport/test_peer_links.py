"""Links between workers, over real sockets."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lineclear.base.ids import WorkerId
from lineclear.config.components import LinkConfig
from lineclear.engine.bell import wait_readable
from lineclear.protocol.handoff.hello import PeerHello, Role
from lineclear.protocol.handoff.messages import Abort, LineClear
from lineclear.protocol.handoff.names import Epoch, Peer
from lineclear.transport.endpoint import Endpoint, TcpEndpoint, UnixEndpoint
from lineclear.transport.framing import frame
from lineclear.transport.peer_links import (
    REFUSED_SECONDS,
    LifeRefused,
    PeerConnected,
    PeerEvent,
    PeerLinks,
    PeerLost,
    PeerSaid,
)

PATIENCE_SECONDS = 10.0
FACTS = {"wire version": "1", "dtype": "fp32"}
EPOCH, PEER = Epoch(WorkerId("d"), 1, 1), Peer(WorkerId("p"), 0, 1)


def hello(role: Role, **changes: object) -> PeerHello:
    fields: dict[str, object] = {"role": role, "worker_id": role.value, "life": 1, "facts": FACTS, "num_blocks": 4}
    return PeerHello(**(fields | changes))


class Pair:
    """A prefill instance that listens, and a decode worker."""

    def __init__(self, endpoint: Endpoint, config: LinkConfig, **prefill: object) -> None:
        self.prefill = PeerLinks(lambda: hello(Role.PREFILL, **prefill), config)
        self.decode = PeerLinks(lambda: hello(Role.DECODE), config)
        self.endpoint = self.prefill.listen(endpoint)
        self.decode.want([self.endpoint])
        self.events: dict[PeerLinks, list[PeerEvent]] = {self.prefill: [], self.decode: []}

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reached():
            assert time.monotonic() < deadline, self.events
            for links, seen in self.events.items():
                seen.extend(links.poll())
            wait_readable([self.prefill.fileno(), self.decode.fileno()], 0.02)

    def connect(self) -> tuple[PeerConnected, PeerConnected]:
        self.until(lambda: all(self.events.values()))
        (at_prefill,), (at_decode,) = self.events[self.prefill], self.events[self.decode]
        assert isinstance(at_prefill, PeerConnected)
        assert isinstance(at_decode, PeerConnected)
        return at_prefill, at_decode

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()


@pytest.fixture(params=["unix", "tcp"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Endpoint:
    return UnixEndpoint(str(tmp_path / "p")) if request.param == "unix" else TcpEndpoint("127.0.0.1", 0)


@pytest.fixture
def make_pair(endpoint: Endpoint) -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []

    def make(**changes: object) -> Pair:
        config = LinkConfig(heartbeat_seconds=0.05, peer_timeout_seconds=changes.pop("peer_timeout_seconds", 30.0))
        pairs.append(Pair(endpoint, config, **changes))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()


def test_both_learn_of_each_other_and_messages_arrive_in_order(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(writer=b"identity")
    at_prefill, at_decode = pair.connect()
    assert (at_prefill.hello.worker_id, at_decode.hello.worker_id) == ("decode", "prefill")
    assert at_decode.hello.writer == b"identity"
    sent = [Abort(Epoch(WorkerId("d"), 1, number), PEER) for number in range(1, 3000)]
    for message in sent:
        assert pair.decode.send(at_decode.link_id, message)
    pair.until(lambda: len(pair.events[pair.prefill]) == len(sent) + 1)
    assert [event.message for event in pair.events[pair.prefill][1:]] == sent
    assert pair.prefill.send(at_prefill.link_id, LineClear(EPOCH, PEER))
    pair.until(lambda: len(pair.events[pair.decode]) == 2)
    assert pair.events[pair.decode][1] == PeerSaid(at_decode.link_id, LineClear(EPOCH, PEER))


def test_a_peer_that_does_not_fit_is_refused_with_the_difference(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(facts=FACTS | {"dtype": "bf16"})
    pair.until(lambda: pair.prefill.statistics().num_refused > 0 and pair.decode.statistics().num_refused > 0)
    assert pair.events == {pair.prefill: [], pair.decode: []}
    assert pair.decode.statistics().num_open == 0


def test_a_refused_peer_is_told_of_once_and_asked_again_later(
    make_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lineclear.transport.peer_links.REFUSED_SECONDS", 0.05)
    pair = make_pair(facts=FACTS | {"dtype": "bf16"})
    pair.until(lambda: pair.decode.statistics().num_refused >= 3)
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == len(set(told)) > 0
    assert all("dtype: " in line for line in told)


def test_a_refused_peer_is_left_alone_for_a_while(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(facts=FACTS | {"dtype": "bf16"})
    pair.until(lambda: pair.decode.statistics().num_open == 0 and pair.decode.statistics().num_refused > 0)
    (due,) = pair.decode._wanted.values()
    assert due > time.monotonic() + REFUSED_SECONDS / 2


def test_a_lost_peer_is_noticed_and_connected_again(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.connect()
    pair.prefill.close()
    del pair.events[pair.prefill]
    pair.prefill = PeerLinks(lambda: hello(Role.PREFILL, life=2), LinkConfig(heartbeat_seconds=0.05))
    if isinstance(pair.endpoint, UnixEndpoint):
        Path(pair.endpoint.path).unlink()
    pair.prefill.listen(pair.endpoint)
    pair.events[pair.prefill] = []
    pair.until(lambda: len(pair.events[pair.decode]) == 3)
    _, lost, again = pair.events[pair.decode]
    assert isinstance(lost, PeerLost)
    assert isinstance(again, PeerConnected)
    assert again.hello.life == 2
    assert not pair.decode.send(lost.link_id, Abort(EPOCH, PEER))


def test_silence_ends_a_link(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair(peer_timeout_seconds=0.3)
    pair.connect()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not isinstance(pair.events[pair.decode][-1], PeerLost):
        assert time.monotonic() < deadline
        pair.events[pair.decode] += pair.decode.poll()
        time.sleep(0.02)


@pytest.mark.parametrize("data", [frame(b"nonsense"), b"\xff\xff\xff\xff", frame(b"\x81\xa4type\xa5abort")])
def test_nonsense_closes_the_link_and_is_counted(make_pair: Callable[..., Pair], data: bytes) -> None:
    pair = make_pair()
    stranger = _open(pair.endpoint)
    stranger.sendall(data)
    pair.until(lambda: pair.prefill.statistics().num_malformed == 1)
    stranger.settimeout(PATIENCE_SECONDS)
    while stranger.recv(65_536):
        pass
    stranger.close()
    assert pair.prefill.statistics().num_lost == 0


def _open(endpoint: Endpoint) -> socket.socket:
    if isinstance(endpoint, UnixEndpoint):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(endpoint.path)
        return connection
    return socket.create_connection((endpoint.host, endpoint.port))


def test_a_life_that_is_refused_for_good_hears_of_it(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    _, at_decode = pair.connect()
    pair.decode.refuse(at_decode.link_id, "it is being fenced", ends_life=True)
    pair.until(lambda: LifeRefused("it is being fenced") in pair.events[pair.prefill])
    assert pair.decode.statistics().num_refused == 1


def test_a_refusal_that_is_not_for_good_is_only_a_lost_link(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    _, at_decode = pair.connect()
    pair.decode.refuse(at_decode.link_id, "not now", ends_life=False)
    pair.until(lambda: any(isinstance(event, PeerLost) for event in pair.events[pair.prefill]))
    assert not any(isinstance(event, LifeRefused) for event in pair.events[pair.prefill])
