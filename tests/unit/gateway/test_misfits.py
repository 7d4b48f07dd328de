"""Workers that would give other answers than those that are there, or that have their names."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lineclear.gateway.served_model import TextAssets
from tests.unit.gateway.conftest import RunningGateway
from tests.unit.gateway.scripted_worker import WAIT_SECONDS, ScriptedWorker, model_facts

StartGateway = Callable[..., RunningGateway]

DECISIVE = {"model": "ab12", "device": "cpu", "dtype": "fp32", "batch-invariant": "True"}


@pytest.mark.parametrize("name", DECISIVE)
def test_a_worker_that_would_answer_differently_gets_nothing(start_gateway: StartGateway, name: str) -> None:
    gateway = start_gateway()
    gateway.start_worker(facts=model_facts(decisive=DECISIVE))
    other = ScriptedWorker(
        gateway.control_endpoint, worker_id="other", facts=model_facts(decisive=DECISIVE | {name: "x"})
    )
    gateway.workers.append(other)
    assert other.refused.get(timeout=WAIT_SECONDS).endswith(f"differently: {name}: {DECISIVE[name]} here, x there")
    serving = gateway.on_loop(lambda: [worker.hello.worker_id for worker in gateway.gateway.dispatcher.workers])
    assert serving == ["worker-0"]
    other.kill()
    gateway.wait_until(lambda: len(gateway.gateway.dispatcher._links._links) == 1)


def test_what_decides_no_answer_may_differ(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.start_worker(facts=model_facts(decisive=DECISIVE))
    gateway.start_worker(worker_id="worker-1", facts=model_facts(decisive=DECISIVE, num_blocks=64, block_size=8))


def test_the_first_worker_must_have_the_gateways_model(start_gateway: StartGateway, assets: TextAssets) -> None:
    gateway = start_gateway(text=replace(assets, model_digest="cd34"))
    other = ScriptedWorker(gateway.control_endpoint, facts=model_facts(decisive=DECISIVE))
    assert other.refused.get(timeout=WAIT_SECONDS).endswith("differently: model: cd34 here, ab12 there")
    other.kill()
    gateway.start_worker(facts=model_facts(decisive=DECISIVE | {"model": "cd34"}))


def test_a_later_life_takes_the_name_and_the_earlier_one_is_told_to_end(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    first = gateway.start_worker()
    second = ScriptedWorker(gateway.control_endpoint, worker_id=first.worker_id, life=first.life + 1)
    gateway.workers.append(second)
    assert first.refused.get(timeout=WAIT_SECONDS).endswith(f"a later life has taken, that of {second.life}")
    lives = gateway.on_loop(lambda: [worker.hello.life for worker in gateway.gateway.dispatcher.workers])
    assert lives == [second.life]


def test_an_earlier_life_comes_too_late(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    second = gateway.start_worker(life=7)
    first = ScriptedWorker(gateway.control_endpoint, worker_id=second.worker_id, life=6)
    gateway.workers.append(first)
    assert first.refused.get(timeout=WAIT_SECONDS) == "worker_id: got worker-0, which a later life has, that of 7"
    lives = gateway.on_loop(lambda: [worker.hello.life for worker in gateway.gateway.dispatcher.workers])
    assert lives == [7]


def test_a_worker_that_comes_again_before_it_is_missed_is_there_once(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    worker = gateway.start_worker()
    again = ScriptedWorker(gateway.control_endpoint, worker_id=worker.worker_id, life=worker.life)
    gateway.workers.append(again)
    gateway.wait_until(lambda: len(gateway.gateway.dispatcher._links._links) == 2)
    gateway.wait_until(lambda: gateway.gateway.dispatcher.statistics().num_workers_lost == 1)
    assert gateway.on_loop(lambda: len(gateway.gateway.dispatcher.workers)) == 1
