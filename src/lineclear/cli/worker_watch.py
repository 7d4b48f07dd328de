"""Finds a worker that lives but is stuck: its gateway has lost it, and it does not connect again.

unwatched ──WorkerReady──▶ ready ──GatewayServing without it──▶ missed ──patience ends──▶ killed
    ▲                        ▲                                    │
    └── the worker ended     └───────── GatewayServing with it ───┘
"""

import asyncio
from collections.abc import Callable

from lineclear.transport.reports import GatewayServing


class WorkerWatch:
    """Calls `kill` when a worker that was ready has been missed for as long as patience lasts."""

    def __init__(self, worker_id: str, patience_seconds: float, kill: Callable[[], None]) -> None:
        self._worker_id = worker_id
        self._patience_seconds = patience_seconds
        self._kill = kill
        self._is_ready = False
        self._timer: asyncio.TimerHandle | None = None

    def on_ready(self) -> None:
        """The worker has said hello."""
        self._is_ready = True

    def on_serving(self, report: GatewayServing) -> None:
        """The gateway tells which workers it has."""
        self._stop_timer()
        if self._is_ready and self._worker_id not in (*report.worker_ids, *report.prefill_ids):
            self._timer = asyncio.get_running_loop().call_later(self._patience_seconds, self._kill)

    def on_worker_end(self) -> None:
        """The worker ended; the next one is watched when it is ready."""
        self._is_ready = False
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
