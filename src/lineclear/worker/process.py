"""A worker process: loads the model, then serves its gateway for as long as the supervisor lives.

    loading ──▶ connecting ──hello──▶ serving ──gateway lost──▶ connecting ...

It ends by a signal, when nothing is left to do and what is on its way to disk has got there, or with its supervisor.
"""

import gc
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from lineclear.base.errors import PeerError
from lineclear.config.components import ServeConfig
from lineclear.protocol import wire
from lineclear.transport.endpoint import Endpoint, parse_endpoint
from lineclear.transport.gateway_link import GatewayLink
from lineclear.transport.reports import Loading, ReportSink, WorkerReady
from lineclear.worker.desk import LeaveRequest, LifeOverError
from lineclear.worker.facts import model_facts, worker_statistics
from lineclear.worker.handoffs import Progress, assemble, assemble_follower
from lineclear.worker.loop import WorkerLoop
from lineclear.worker.making import AS_SHIPPED, WorkerMaking
from lineclear.worker.ranks.leader import LeaderLeave
from lineclear.worker.seat import LAST_COPIES_SECONDS, Seat

CONNECT_PAUSE_SECONDS = 0.05
"""A gateway that is starting is tried this often: a connection attempt on one host costs microseconds."""

PROGRESS_SECONDS = 2.0
"""How often a worker that is loading says how far it is."""

WAITING_SECONDS = 60.0
"""How often one that waits says that it still does."""

EXIT_LIFE_OVER = 75
"""What sysexits.h calls a temporary failure: starting it again helps."""

logger = logging.getLogger(__name__)


class _LeftEarlyError(Exception):
    """Asked to leave while it was loading: there is nothing to finish."""


def run_worker(
    config: ServeConfig,
    seat: Seat,
    *,
    control_endpoint: str,
    report: ReportSink,
    leave: LeaveRequest | None = None,
    making: WorkerMaking = AS_SHIPPED,
) -> None:
    """Load, then serve: for ever, or until asked to leave and drained, and then finish copies for a moment.

    `making` is for the lab.

    Raises:
        ConfigError: A setting that the model or the machine cannot meet.
        CheckpointError: The model cannot be loaded.
        MoverError: The mover cannot be had here.
        WorkerRefusedError: It does not fit the gateway's other workers, or the gateway's model.
        SystemExit: Other workers take nothing of this life any more; the next one can serve.
    """
    started = time.monotonic()
    model_dir = Path(config.source.model)
    size_mb = sum(path.stat().st_size for path in model_dir.glob("*.safetensors")) / 1e6
    say = _stage_sink(seat, report)
    say(f"loading {size_mb:,.0f} MB of weights")
    progress = _progress(say, leave)
    try:
        if seat.rank > 0:
            follower = assemble_follower(config, seat, progress, leave)
            say("ready")
            follower.run()
            return
        assembly = assemble(config, seat, progress, making=making)
    except _LeftEarlyError:
        return
    except LifeOverError as error:
        _end_life(error)
    engine, desk = assembly.engine, assembly.desk
    gc.collect()
    gc.freeze()  # the loaded modules are never garbage: collections between steps need not walk them
    facts = model_facts(config, num_blocks=engine.store.num_blocks)
    hello = wire.WorkerHello(
        version=wire.WIRE_VERSION,
        worker_id=seat.worker_id,
        life=seat.life,
        pid=os.getpid(),
        model=facts,
        role=seat.role,
        peer_endpoints=assembly.peer_endpoints,
    )

    def statistics() -> wire.WorkerStatistics:
        handoffs = None if desk is None else desk.statistics()
        return worker_statistics(engine.statistics(), handoffs, assembly.read_ranks())

    if leave is not None and assembly.followers is not None:
        leave = LeaderLeave(leave, assembly.followers)
    loop = WorkerLoop(engine, statistics, desk=desk, leave=leave)
    endpoint = parse_endpoint(control_endpoint)
    load_seconds = time.monotonic() - started
    try:
        while not loop.has_left and (link := _connect(endpoint, hello, config, loop, say)) is not None:
            report(WorkerReady(facts, load_seconds))
            _serve(loop, link)
        if not engine.finish_copies(LAST_COPIES_SECONDS):
            logger.warning(
                "not all of the cache got to disk within %g s; the rest will be computed", LAST_COPIES_SECONDS
            )
    except LifeOverError as error:
        _end_life(error)
    assembly.close()


def _end_life(error: LifeOverError) -> NoReturn:
    logger.error("this life ends: %s", error)
    sys.exit(EXIT_LIFE_OVER)


def _stage_sink(seat: Seat, report: ReportSink) -> Callable[[str], None]:
    """Tell of a stage of starting, and in an instance of several ranks of whose."""
    whose = f"rank {seat.rank} of {seat.num_ranks}: " if seat.num_ranks > 1 else ""
    return lambda stage: report(Loading(whose + stage))


def _progress(say: Callable[[str], None], leave: LeaveRequest | None) -> Progress:
    """Tell of the loading every few seconds, and end it for who wants this worker to leave."""
    told, last_stage = time.monotonic(), ""

    def on_waiting(stage: str) -> None:
        """The same is said again only now and then."""
        nonlocal told, last_stage
        if leave is not None and leave.is_set:
            raise _LeftEarlyError
        if time.monotonic() - told >= (WAITING_SECONDS if stage == last_stage else PROGRESS_SECONDS):
            told, last_stage = time.monotonic(), stage
            say(stage)

    return Progress(
        lambda num_read, num_all: on_waiting(f"loading weights: {num_read:,} of {num_all:,} tensors"), on_waiting
    )


def _connect(
    endpoint: Endpoint, hello: wire.WorkerHello, config: ServeConfig, loop: WorkerLoop, say: Callable[[str], None]
) -> GatewayLink | None:
    """Try until the gateway is there, or this worker may leave; other workers are served meanwhile."""
    next_attempt, say_at = 0.0, time.monotonic() + PROGRESS_SECONDS
    while True:
        if time.monotonic() >= say_at:
            say_at = time.monotonic() + WAITING_SECONDS
            say(f"waiting for the gateway at {endpoint}")
        if time.monotonic() >= next_attempt:
            try:
                return GatewayLink.connect(endpoint, hello, config.link)
            except OSError as error:
                logger.debug("no gateway at %s yet: %s", endpoint, error)
            next_attempt = time.monotonic() + CONNECT_PAUSE_SECONDS
        if loop.turn_alone(max(0.0, next_attempt - time.monotonic())):
            return None


def _serve(loop: WorkerLoop, link: GatewayLink) -> None:
    try:
        loop.serve(link)
    except (ConnectionError, PeerError) as error:
        level = logging.DEBUG if loop.is_drained else logging.WARNING
        logger.log(level, "lost the gateway: %s; everything it had asked for is cancelled", error)
    finally:
        link.close()
