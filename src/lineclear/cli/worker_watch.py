"""Finds a worker that lives but is stuck: its gateway has lost it, and it does not connect again.

unwatched ──WorkerReady──▶ ready ──GatewayServing(0)──▶ missed ──patience ends──▶ killed
    ▲                        ▲                             │
    └── the worker ended     └────── GatewayServing(n) ────┘
"""

import asyncio
from collections.abc import Callable

from lineclear.transport.reports import GatewayServing, Report, WorkerReady


class WorkerWatch:
    """Calls `kill` when a worker that was ready has been missed for as long as patience lasts."""

    def __init__(self, patience_seconds: float, kill: Callable[[], None]) -> None:
        self._patience_seconds = patience_seconds
        self._kill = kill
        self._is_ready = False
        self._timer: asyncio.TimerHandle | None = None

    def on_report(self, report: Report) -> None:
        """A process reported."""
        if isinstance(report, WorkerReady):
            self._is_ready = True
        if not isinstance(report, GatewayServing):
            return
        self._stop_timer()
        if not report.num_workers and self._is_ready:
            self._timer = asyncio.get_running_loop().call_later(self._patience_seconds, self._kill)

    def on_worker_end(self) -> None:
        """The worker ended; the next one is watched when it is ready."""
        self._is_ready = False
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
