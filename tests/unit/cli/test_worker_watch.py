import asyncio
from collections.abc import Callable

import pytest

from lineclear.cli.worker_watch import WorkerWatch
from lineclear.transport.reports import GatewayServing

READY, ENDED = "the worker is ready", "the worker ended"
HERE = GatewayServing(["worker-0", "worker-1"])
HELPING = GatewayServing(["worker-0"], ["worker-1"])
AWAY = GatewayServing(["worker-0"])


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
        ([READY, HERE, AWAY], True),
        ([READY, HERE, AWAY, AWAY], True),
        ([READY, HERE, AWAY, HERE], False),
        ([READY, HERE, AWAY, ENDED], False),
        ([READY, HERE, ENDED, AWAY], False),
        ([AWAY], False),
        ([READY, HELPING], False),
        ([READY, HELPING, AWAY], True),
        ([READY, HERE], False),
    ],
)
def test_a_worker_is_killed_when_it_was_ready_and_stays_away(
    history: list[GatewayServing | str], is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers, kills = Timers(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    watch = WorkerWatch("worker-1", 7.0, lambda: kills.append(1))
    for entry in history:
        if isinstance(entry, GatewayServing):
            watch.on_serving(entry)
        elif entry == READY:
            watch.on_ready()
        else:
            watch.on_worker_end()
    for timer in timers.waiting:
        timer.call()
    assert bool(kills) == is_killed
