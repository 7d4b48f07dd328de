"""The supervisor of `lineclear serve`: starts the gateway and the workers, restarts what dies, stops all in order.

    starting ──▶ running ──first signal──▶ draining ──gateway and workers ended──▶ stopped (0)
                    │                          └──────second signal──▶ killed ──▶ stopped (130)
                    └── crash loop (1), or an error that a restart would repeat (2) ──▶ killed ──▶ stopped

Draining is the gateway's: it refuses new requests, finishes the running ones, and exits; then the workers are ended,
which finish what is on its way to disk.

Invariants:
1. When `run` returns, no child is alive. If the supervisor itself is killed, its children end with it (see `child`).
2. Every life of a process has a larger number than the one before.
"""

import asyncio
import dataclasses
import functools
import itertools
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from lineclear.base.errors import LineclearError
from lineclear.cli.announcer import Announcer
from lineclear.cli.child import GatewayStart, WorkerStart
from lineclear.cli.child_group import ChildGroup
from lineclear.cli.child_process import describe_exit
from lineclear.cli.exit_codes import EXIT_CRASH_LOOP, EXIT_INTERRUPTED, EXIT_USER_ERROR
from lineclear.cli.restarts import RestartPolicy
from lineclear.cli.worker_watch import WorkerWatch
from lineclear.config.components import ServeConfig
from lineclear.protocol.roles import Role
from lineclear.transport.endpoint import UnixEndpoint
from lineclear.transport.reports import Failed, GatewayListening, GatewayServing, Report, WorkerReady
from lineclear.worker.seat import LAST_COPIES_SECONDS, Seat

GATEWAY = "gateway"
WORKER = "worker"
"""The commands of both kinds of processes."""

DRAIN_MARGIN_SECONDS = 10.0
"""What a gateway may take longer than its drain time, to end its last requests."""

WORKER_STOP_SECONDS = 5.0 + LAST_COPIES_SECONDS
"""How long an idle worker may take to end, the last files of its cache included."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs the processes of one service, each as `program` with the command `gateway` or `worker`.

    Their sockets lie in `folder`.
    """

    def __init__(
        self,
        config: ServeConfig,
        announcer: Announcer,
        folder: Path,
        program: Sequence[str] = (sys.executable, "-m", "lineclear"),
    ) -> None:
        self._program = program
        self._config = config
        self._announcer = announcer
        self._folder = folder
        self._children: dict[str, ChildGroup] = {}
        self._seats = {_name(seat, config): seat for seat in seats(config)}
        patience = config.link.peer_timeout_seconds
        self._watches = {
            name: WorkerWatch(seat.worker_id, patience, functools.partial(self._end_stuck_worker, name))
            for name, seat in self._seats.items()
        }
        self._first_signal = asyncio.Event()
        self._second_signal = asyncio.Event()
        self._failure: str | None = None

    async def run(self) -> int:
        """Run until a stop signal, or until a process cannot be kept alive; return the exit code.

        Raises:
            LineclearError: A process failed for a reason that a restart would repeat, in its own words.
        """
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_stop_signal)
        self._announcer.on_start()
        keepers = [asyncio.create_task(self._keep(name)) for name in (GATEWAY, *self._seats)]
        try:
            code = await self._until_stopped(keepers)
        finally:
            await self._end_all(keepers)
        self._announcer.on_stop()
        if self._failure is not None:
            raise LineclearError(self._failure)
        return code

    def _on_stop_signal(self) -> None:
        (self._second_signal if self._first_signal.is_set() else self._first_signal).set()

    async def _until_stopped(self, keepers: list[asyncio.Task[int]]) -> int:
        stop = asyncio.create_task(self._first_signal.wait())
        await asyncio.wait([*keepers, stop], return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            return await self._drain()
        stop.cancel()
        return next(keeper.result() for keeper in keepers if keeper.done())

    async def _keep(self, name: str) -> int:
        """Keep a process alive; return the exit code when that makes no sense any more."""
        policy = RestartPolicy(self._config.supervisor)
        for life in itertools.count(1):
            starts = self._start_messages(name, life)
            command = GATEWAY if name == GATEWAY else WORKER
            # The name comes last, so that a list of processes tells who is who.
            programs = [(*self._program, command, "--child", each) for each in _process_names(name, len(starts))]
            child = self._children[name] = await ChildGroup.start(programs, starts)
            code = await child.watch(lambda report: self._on_report(name, report))
            self._announcer.on_end(name)
            if name in self._watches:
                self._watches[name].on_worker_end()
            if self._first_signal.is_set() or code == EXIT_USER_ERROR:
                return code
            wait = policy.wait_before_restart(asyncio.get_running_loop().time() - child.started_at)
            if wait is None and name in self._seats and self._seats[name].role is Role.PREFILL:
                max_restarts = self._config.supervisor.max_restarts
                self._announcer.on_prefill_given_up(name, describe_exit(code), max_restarts)
                await asyncio.Event().wait()  # the service can do without it
            if wait is None:
                self._announcer.on_crash_loop(name, describe_exit(code), self._config.supervisor.max_restarts)
                return EXIT_CRASH_LOOP
            self._announcer.on_restart(name, describe_exit(code), wait, life + 1)
            await asyncio.sleep(wait)
        raise AssertionError("lives are countless")

    def _start_messages(self, name: str, life: int) -> list[GatewayStart] | list[WorkerStart]:
        """One for each process."""
        control_endpoint = str(UnixEndpoint(control_socket(self._folder)))
        if name == GATEWAY:
            return [GatewayStart(self._config, control_endpoint)]
        seat = dataclasses.replace(self._seats[name], life=life)
        if seat.role is not Role.PREFILL:
            return [WorkerStart(self._config, control_endpoint, seat)]
        rank_endpoint = str(UnixEndpoint(rank_socket(self._folder, seat.worker_id, life)))
        return [
            WorkerStart(
                self._config,
                control_endpoint,
                dataclasses.replace(
                    seat,
                    rank=rank,
                    rank_endpoint=rank_endpoint,
                    peer_endpoint=str(UnixEndpoint(peer_socket(self._folder, seat.worker_id, life, rank))),
                ),
            )
            for rank in range(seat.num_ranks)
        ]

    def _on_report(self, name: str, report: Report) -> None:
        if isinstance(report, GatewayListening):  # its next life must be found at the same place
            gateway = dataclasses.replace(self._config.gateway, port=report.port)
            self._config = dataclasses.replace(self._config, gateway=gateway)
        if isinstance(report, Failed):
            self._failure = self._failure or report.message
        self._announcer.on_report(name, report)
        if isinstance(report, WorkerReady):
            self._watches[name].on_ready()
        if isinstance(report, GatewayServing):
            for watch in self._watches.values():
                watch.on_serving(report)

    def _end_stuck_worker(self, name: str) -> None:
        """While draining, a worker has a time limit anyway."""
        if not self._first_signal.is_set():
            self._announcer.on_stuck_worker(name)
            self._children[name].kill()

    async def _drain(self) -> int:
        self._announcer.on_drain()
        await self._stop(GATEWAY, self._config.supervisor.drain_seconds + DRAIN_MARGIN_SECONDS)
        await asyncio.gather(*(self._stop(name, WORKER_STOP_SECONDS) for name in self._seats))
        return EXIT_INTERRUPTED if self._second_signal.is_set() else 0

    async def _stop(self, name: str, patience_seconds: float) -> None:
        """Ask a process to finish, and kill it when patience ends or the second signal comes."""
        child = self._children.get(name)
        if child is None:
            return
        child.terminate()
        waits = [asyncio.create_task(child.wait()), asyncio.create_task(self._second_signal.wait())]
        await asyncio.wait(waits, timeout=patience_seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        child.kill()
        await child.wait()

    async def _end_all(self, keepers: list[asyncio.Task[int]]) -> None:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for child in self._children.values():
            child.kill()
            await child.wait()


def control_socket(folder: Path) -> str:
    """Where the gateway listens for workers, in the folder of a service."""
    return str(folder / "control")


def peer_socket(folder: Path, worker_id: str, life: int, rank: int = 0) -> str:
    """Where one life of a prefill instance, or a rank of it, listens for decode workers."""
    return str(folder / f"{_process_names(worker_id, rank + 1)[rank]}.{life}")


def rank_socket(folder: Path, worker_id: str, life: int) -> str:
    """Where its first rank listens for the others; what they meet at has the same name and more."""
    return str(folder / f"{worker_id}.ranks.{life}")


def seats(config: ServeConfig) -> list[Seat]:
    """The workers of a service: those that take requests first."""
    num_prefill, num_decode = config.num_prefill, config.handoff.decode
    cp = config.ranks.cp
    share = 1 / (num_prefill * cp + num_decode)
    role, stem = (Role.DECODE, "decode") if num_prefill else (Role.COLOCATED, "worker")
    serving = [Seat(f"{stem}-{idx}", 0, role, memory_share=share) for idx in range(num_decode)]
    prefill = [Seat(f"prefill-{i}", 0, Role.PREFILL, memory_share=share, num_ranks=cp) for i in range(num_prefill)]
    return serving + prefill


def _process_names(name: str, count: int) -> list[str]:
    """What the processes of a worker are called: the first as the worker, the others by their rank as well."""
    return [name, *(f"{name}.{rank}" for rank in range(1, count))]


def _name(seat: Seat, config: ServeConfig) -> str:
    """What a worker is called on the terminal: one that is alone needs no number."""
    is_alone = config.num_prefill == 0 and config.handoff.decode == 1
    return WORKER if is_alone else seat.worker_id
