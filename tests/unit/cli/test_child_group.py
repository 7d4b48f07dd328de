"""Processes that live and end together, as the supervisor sees the ranks of a prefill instance."""

import asyncio
import sys
from pathlib import Path

import pytest

from lineclear.cli.child import WorkerStart
from lineclear.cli.child_group import ChildGroup
from lineclear.cli.exit_codes import EXIT_USER_ERROR
from lineclear.config.components import ServeConfig
from lineclear.worker.seat import Seat

START = WorkerStart(ServeConfig(), "unix:/nowhere", Seat("p0", 1))
FOR_EVER = "import time; time.sleep(1000)"


def programs(*sources: str) -> list[tuple[str, ...]]:
    return [(sys.executable, "-c", source) for source in sources]


async def watch(*sources: str) -> int:
    group = await ChildGroup.start(programs(*sources), [START] * len(sources))
    try:
        return await asyncio.wait_for(group.watch(lambda _: None), 60)
    finally:
        group.kill()
        await group.wait()


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        (("",), 0),
        (("", ""), 0),
        (("raise SystemExit(75)", FOR_EVER), 75),
        ((FOR_EVER, "raise SystemExit(75)", FOR_EVER), 75),
        ((FOR_EVER, "import os; os.kill(os.getpid(), 9)"), -9),
        ((f"raise SystemExit({EXIT_USER_ERROR})", FOR_EVER), EXIT_USER_ERROR),
    ],
)
def test_when_one_fails_all_end_and_its_code_is_theirs(sources: tuple[str, ...], code: int) -> None:
    assert asyncio.run(watch(*sources)) == code


def test_who_does_not_end_after_the_first_has_left_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lineclear.cli.child_group.GOODBYE_SECONDS", 0.1)
    assert asyncio.run(watch("", FOR_EVER)) == 0


def test_who_is_asked_to_finish_is_the_first(tmp_path: Path) -> None:
    is_ready = tmp_path / "ready"
    waits = (
        "import pathlib, signal, sys; signal.signal(15, lambda *_: sys.exit(0));"
        f"pathlib.Path({str(is_ready)!r}).touch(); signal.pause()"
    )

    async def finish() -> int:
        group = await ChildGroup.start(programs(waits, FOR_EVER), [START] * 2)
        try:
            while not is_ready.exists():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.01)
            group.terminate()
            return await asyncio.wait_for(group.watch(lambda _: None), 60)
        finally:
            group.kill()
            await group.wait()

    assert asyncio.run(finish()) == 0
