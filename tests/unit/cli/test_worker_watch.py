import asyncio
from collections.abc import Callable

import pytest

from lineclear.cli.worker_watch import WorkerWatch
from lineclear.transport.reports import GatewayListening, GatewayServing, Report, WorkerReady
from tests.unit.transport.model_facts import FACTS

READY = WorkerReady(FACTS, 1.0)
ENDED = "the worker ended"


class Timers:
    """Stands for the event loop: keeps what is to be called, and calls it when told."""

    def __init__(self) -> None:
        self.waiting: list[Timers.Handle] = []

    class Handle:
        def __init__(self, call: Callable[[], None], waiting: list["Timers.Handle"]) -> None:
            self.call = call
            self._waiting = waiting

        def cancel(self) -> None:
            self._waiting.remove(self)

    def call_later(self, delay: float, call: Callable[[], None]) -> "Timers.Handle":
        assert delay == 7.0
        self.waiting.append(Timers.Handle(call, self.waiting))
        return self.waiting[-1]


@pytest.mark.parametrize(
    ("history", "is_killed"),
    [
        ([READY, GatewayServing(1), GatewayServing(0)], True),
        ([READY, GatewayServing(1), GatewayServing(0), GatewayServing(0)], True),
        ([READY, GatewayServing(1), GatewayServing(0), GatewayServing(1)], False),
        ([READY, GatewayServing(1), GatewayServing(0), ENDED], False),
        ([READY, GatewayServing(1), ENDED, GatewayServing(0)], False),
        ([GatewayListening("h", 1), GatewayServing(0)], False),
        ([READY, GatewayServing(1)], False),
    ],
)
def test_a_worker_is_killed_when_it_was_ready_and_stays_away(
    history: list[Report | str], is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers, kills = Timers(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    watch = WorkerWatch(7.0, lambda: kills.append(1))
    for entry in history:
        if isinstance(entry, str):
            watch.on_worker_end()
        else:
            watch.on_report(entry)
    for timer in timers.waiting:
        timer.call()
    assert bool(kills) == is_killed
