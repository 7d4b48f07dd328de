import json
from collections.abc import Callable

import httpx
import pytest

from lineclear.cli.main import main
from lineclear.gateway import quarantine
from lineclear.protocol import wire
from tests.unit.gateway.conftest import RunningGateway
from tests.unit.gateway.scripted_worker import ScriptedWorker, statistics

StartGateway = Callable[..., RunningGateway]

WAITED_FOR = wire.QuarantinedWriter(worker_id="prefill-0", rank=0, life=3, num_handoffs=2, num_blocks=12, seconds=41.26)
WORD = {"worker": "worker-0", "prefill": "prefill-0", "life": 3, "can_write_no_more": "I am sure"}


@pytest.fixture
def gateway(start_gateway: StartGateway) -> RunningGateway:
    """One whose worker has blocks in quarantine."""
    gateway = start_gateway()
    worker = gateway.start_worker()
    handoffs = wire.HandoffStatistics(
        num_peers=0,
        num_open=2,
        num_done=7,
        blocks_quarantined=12,
        blocks_vouched=4,
        num_links_ended={"lost": 3, "malformed": 2, "refused": 1},
        quarantine=[WAITED_FOR],
    )
    worker.figures = statistics(handoffs=handoffs)
    worker.released_answer = wire.QuarantineReleased(num_blocks=12)
    return gateway


def worker_of(gateway: RunningGateway) -> ScriptedWorker:
    (worker,) = gateway.workers
    return worker


def release(gateway: RunningGateway, **changes: object) -> httpx.Response:
    body = {name: value for name, value in (WORD | changes).items() if value is not None}
    return gateway.client.post("/quarantine/release", json=body)


def test_what_waits_is_shown_and_counted(gateway: RunningGateway) -> None:
    (shown,) = gateway.client.get("/quarantine").json()["quarantine"]
    assert shown == {
        "worker": "worker-0", "prefill": "prefill-0", "rank": 0, "life": 3, "handoffs": 2, "blocks": 12, "seconds": 41.3
    }  # fmt: skip
    metrics = gateway.client.get("/metrics").text.splitlines()
    assert 'lineclear_handoff_blocks_quarantined{worker="worker-0"} 12.0' in metrics
    assert 'lineclear_handoff_blocks_vouched_total{worker="worker-0"} 4.0' in metrics
    assert 'lineclear_handoff_links_ended_total{reason="malformed",worker="worker-0"} 2.0' in metrics


def test_the_word_is_passed_on_as_it_was_given(gateway: RunningGateway) -> None:
    response = release(gateway)
    assert (response.status_code, response.json()) == (200, {"released_blocks": 12})
    assert worker_of(gateway).released.get_nowait() == wire.ReleaseQuarantine(worker_id="prefill-0", rank=0, life=3)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"can_write_no_more": None}, 400, "can_write_no_more: is missing"),
        ({"can_write_no_more": True}, 400, "can_write_no_more: got true, allowed: string"),
        ({"can_write_no_more": "yes"}, 400, "can_write_no_more: "),
        ({"life": None}, 400, "life: is missing"),
        ({"life": "3"}, 400, 'life: got "3", allowed: integer'),
        ({"life": -1}, 400, "life: got -1, allowed: integer >= 0"),
        ({"lives": 3}, 400, "lives"),
        ({"worker": "worker-1"}, 404, "worker: got 'worker-1', allowed: worker-0"),
    ],
)
def test_a_word_that_is_not_exact_is_refused(
    gateway: RunningGateway, changes: dict[str, object], status: int, message: str
) -> None:
    response = release(gateway, **changes)
    assert response.status_code == status, response.text
    assert message in response.json()["error"]["message"]
    assert worker_of(gateway).released.empty()


def test_where_nothing_waits_for_that_life_it_says_so(gateway: RunningGateway) -> None:
    worker_of(gateway).released_answer = wire.QuarantineReleased(num_blocks=0)
    response = release(gateway, life=4)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_in_quarantine")
    assert "no block of worker-0 waits for rank 0, life 4 of prefill-0" in response.text


def test_a_worker_that_does_not_answer_is_not_waited_for(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "ANSWER_TIMEOUT_SECONDS", 0.05)
    worker_of(gateway).released_answer = None
    response = release(gateway)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_busy")


@pytest.mark.parametrize(
    ("client", "is_local"),
    [(("127.0.0.1", 1), True), (("::1", 1), True), (("10.0.0.8", 1), False), (("host", 1), False), (None, False)],
)
def test_without_keys_only_this_machine_may_give_its_word(client: tuple[str, int] | None, is_local: bool) -> None:
    assert quarantine._is_local({"type": "http", "client": client}) is is_local


def test_a_worker_that_stands_still_hides_nothing(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gateway.client.get("/quarantine").json()["no_answer"] == []
    monkeypatch.setattr(quarantine, "ANSWER_TIMEOUT_SECONDS", 0.05)
    worker_of(gateway).figures = None
    answer = gateway.client.get("/quarantine").json()
    assert (len(answer["quarantine"]), answer["no_answer"]) == (1, ["worker-0"])
    assert main(["quarantine", "list", "--url", gateway.url]) == 0
    assert "worker-0 does not answer: what it said last is shown" in capsys.readouterr().out


def test_with_keys_a_key_is_wanted(start_gateway: StartGateway) -> None:
    gateway = start_gateway(api_key=("secret",))
    gateway.start_worker()
    assert release(gateway).status_code == 401
    assert gateway.client.get("/quarantine").status_code == 401


def test_the_command_shows_and_releases(gateway: RunningGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", "list", "--url", gateway.url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["worker", "prefill", "rank", "life", "handoffs", "blocks", "seconds"]
    assert shown[1].split() == ["worker-0", "prefill-0", "0", "3", "2", "12", "41.3"]
    word = ["--worker", "worker-0", "--prefill", "prefill-0", "--life", "3"]
    command = ["quarantine", "release", "--url", gateway.url, *word]
    assert main(command) == 2
    assert "it-can-write-no-more: got 'nothing', allowed: it, as your word" in capsys.readouterr().err
    assert worker_of(gateway).released.empty()
    assert main([*command, "--it-can-write-no-more"]) == 0
    assert capsys.readouterr().out == "12 blocks of worker-0 are out of quarantine\n"
    worker_of(gateway).released_answer = wire.QuarantineReleased(num_blocks=0)
    assert main([*command, "--it-can-write-no-more"]) == 2
    assert "no block of worker-0 waits for rank 0, life 3 of prefill-0" in capsys.readouterr().err


def test_the_command_says_when_nothing_waits(start_gateway: StartGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway = start_gateway()
    gateway.start_worker()
    assert json.loads(gateway.client.get("/quarantine").text) == {"quarantine": [], "no_answer": []}
    assert main(["quarantine", "list", "--url", gateway.url]) == 0
    assert capsys.readouterr().out == "nothing is in quarantine\n"


def test_the_command_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", "list", "--url", "http://127.0.0.1:9"]) == 2
    assert "url: got 'http://127.0.0.1:9', allowed: the address of a running server" in capsys.readouterr().err
