"""Every mover holds the contract of `lineclear.transport.movers.mover`, in processes of its own where it has any."""

import time
from collections.abc import Iterator

import pytest

from lineclear.transport.movers.kinds import open_mover
from lineclear.transport.movers.mover import MoverError
from tests.contract import mover_checks
from tests.contract.mover_checks import CHECKS, PROCESS_CHECKS, Check
from tests.contract.mover_world import FakeWorld, World

CHECK_SECONDS = 30.0
"""No check takes as long, whatever it waits for."""


def shm_world() -> World:
    return World("shm")


def delayed_world() -> World:
    return World("delayed", num_flood_posts=3)


def lossy_world() -> World:
    return World("lossy", num_flood_posts=3)


def nixl_world() -> World:
    try:
        open_mover("nixl")
    except MoverError as error:
        pytest.skip(f"nixl is not installed, or cannot be used here: {error}")
    return World("nixl", fences_the_living=True, num_flood_posts=60)


def fake_world() -> World:
    return FakeWorld(fences_the_living=False)


def cutting_fake_world() -> World:
    return FakeWorld(fences_the_living=True)


REAL = {"shm": shm_world, "nixl": nixl_world, "delayed": delayed_world}
FAKE = {"fake": fake_world, "fake that cuts off": cutting_fake_world}
WORLDS = REAL | FAKE
LOSSY_CHECKS = [mover_checks.check_answers, mover_checks.check_random_spans, mover_checks.check_close_in_flight]


@pytest.fixture(scope="module", params=WORLDS)
def any_world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = WORLDS[request.param]()
    yield world
    world.close()


@pytest.fixture
def world(any_world: World) -> Iterator[World]:
    yield any_world
    any_world.release()


@pytest.mark.parametrize("check", [*CHECKS, *PROCESS_CHECKS], ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(world: World, check: Check) -> None:
    if check in PROCESS_CHECKS and not world.is_real:
        pytest.skip("a fake has no process to look at")
    started = time.monotonic()
    check(world)
    assert time.monotonic() - started < CHECK_SECONDS


@pytest.mark.parametrize("check", LOSSY_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_answers_that_are_lost(check: Check) -> None:
    world = lossy_world()
    try:
        check(world)
    finally:
        world.close()
